//go:build e2e

package system

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/node"
	"lighter/node/doctor"
	"lighter/test/testkit/workdir"
)

// containerd reads the part of the extension of Talos as Talos gives it: merged with its own
// settings into a file that the main file imports. The doctor finds nothing wrong in the result,
// and the kubelet's pulls use the node. No Talos runs here.
func TestTalosPart(t *testing.T) {
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	part, err := os.ReadFile("../../../deploy/image/talos/10-lighter.part")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	main, merged := filepath.Join(dir, "containerd.toml"), filepath.Join(dir, "cri.toml")
	const ofTalos = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = true\n"
	local := strings.Replace(string(part), "  disable_snapshot_annotations",
		"  discard_unpacked_layers = true\n  use_local_image_pull = true\n  disable_snapshot_annotations", 1)
	if err := errors.Join(os.WriteFile(merged, []byte(ofTalos+local), 0o600),
		os.WriteFile(main, fmt.Appendf(nil, "version = 3\ndisabled_plugins = ['io.containerd.snapshotter.v1.erofs']\n"+
			"imports = [%q]\n", merged), 0o600)); err != nil {
		t.Fatal(err)
	}
	dump, err := exec.CommandContext(t.Context(), filepath.Join(work, "tools", "containerd"), "--config", main,
		"config", "dump").Output()
	if err != nil {
		t.Fatal(err)
	}
	config := node.DefaultConfig()
	config.Trust = node.TrustImage
	findings, err := doctor.JudgeContainerd(dump, "v2.4.2", config)
	cri := func(f doctor.Finding) bool { return strings.HasPrefix(f.What, doctor.CRIUses) }
	bad := func(f doctor.Finding) bool { return f.Level != doctor.OK }
	if err != nil || slices.ContainsFunc(findings, bad) || !slices.ContainsFunc(findings, cri) {
		t.Errorf("the doctor: %+v, %v; want only ok, and CRI that uses the node", findings, err)
	}
}
