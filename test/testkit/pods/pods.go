// Package pods has what the machine of a site needs to run the pods of Kubernetes: the
// configuration of containerd, and a pause image.
package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/test/testkit/workdir"
)

// Pause is the reference of the pause image: that of a pod's sandbox, whose process only waits.
var Pause = site.Reference("pause")

// CheckPackage is a shell's script that compares the files of a Debian package, below the working
// directory, with the checksums in the package.
const CheckPackage = "md5sum --check --quiet --ignore-missing var/lib/dpkg/info/coreutils.md5sums && " +
	"test -s usr/bin/md5sum"

// Bytes is what a machine may receive for a pod whose container checks a package with CheckPackage:
// a third of the image python.
const Bytes = 20 << 20

// AddPause makes the pause image, pushes it to the registry, and adds it to the hub. Its layers are
// those of the image base.
func AddPause(ctx context.Context, s *site.Site) error {
	work, err := workdir.Path()
	if err != nil {
		return err
	}
	base, pause := filepath.Join(work, "images/base"), filepath.Join(s.Dir, "pause")
	manifest, err := layout.Manifest(base)
	if err != nil {
		return err
	}
	config, err := layout.Config(base)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(pause, "blobs/sha256"), 0o755); err != nil {
		return err
	}
	for _, layer := range manifest.Layers {
		if err := os.Link(layout.Blob(base, layer), layout.Blob(pause, layer)); err != nil {
			return err
		}
	}
	config.Config.Entrypoint, config.Config.Cmd = []string{"sleep", "infinity"}, nil
	if err := layout.Write(pause, manifest, config); err != nil {
		return err
	}
	if err := s.Push(ctx, pause, "pause"); err != nil {
		return err
	}
	return s.Hub.Add(ctx, "pause")
}

// Config adds to an administrator's configuration of containerd 2 what pods need here, and the
// given lines to its section about images. No OOM score is lowered. A plugin of CNI, which Config
// writes into a directory, gives each pod that has a network of its own an address that leads
// nowhere. Besides the default handler, there are the runtime handlers "whole", whose snapshotter
// is overlayfs, and "lazy", which uses Lighter.
func Config(cni, text, images string) (string, error) {
	const plugin = "#!/bin/sh\n" + `echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.99.0.2/32"}]}'` + "\n"
	const network = `{"cniVersion": "1.0.0", "name": "nowhere", "plugins": [{"type": "none"}]}`
	for name, text := range map[string]string{"none": plugin, "1.conflist": network} {
		if err := os.WriteFile(filepath.Join(cni, name), []byte(text), 0o755); err != nil {
			return "", err
		}
	}
	const section = "[plugins.\"io.containerd.cri.v1.images\"]\n"
	text = strings.Replace(text, section, section+"    stats_collect_period = 1\n"+images, 1)
	return text + fmt.Sprintf(`
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [%q]
  conf_dir = %q
  use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.whole]
  runtime_type = "io.containerd.runc.v2"
  snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.lazy]
  runtime_type = "io.containerd.runc.v2"
  snapshotter = "lighter"
`, Pause, cni, cni), nil
}
