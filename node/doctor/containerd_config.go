package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// pluginName is the name that containerd has to use for the snapshotter: the labels by which
// containerd keeps snapshots contain it (package front/containerd).
const pluginName = "lighter"

// containerdConfig is the part of containerd's configuration that is examined, in versions 2
// (containerd 1.6 and 1.7), 3 (since 2.0) and 4.
type containerdConfig struct {
	Version  int                    `toml:"version"`
	Disabled []string               `toml:"disabled_plugins"`
	Proxies  map[string]proxyPlugin `toml:"proxy_plugins"`
	Plugins  struct {
		Transfer struct {
			Unpack []unpackConfig `toml:"unpack_config"`
		} `toml:"io.containerd.transfer.v1.local"`
		Images criImages `toml:"io.containerd.cri.v1.images"`
		CRI    struct {
			Containerd criImages `toml:"containerd"`
		} `toml:"io.containerd.grpc.v1.cri"`
	} `toml:"plugins"`
}

type proxyPlugin struct {
	Type         string            `toml:"type"`
	Address      string            `toml:"address"`
	Capabilities []string          `toml:"capabilities"`
	Exports      map[string]string `toml:"exports"`
}

type unpackConfig struct {
	Platform    string `toml:"platform"`
	Snapshotter string `toml:"snapshotter"`
}

type criImages struct {
	Snapshotter        string `toml:"snapshotter"`
	DisableAnnotations *bool  `toml:"disable_snapshot_annotations"`
	Local              bool   `toml:"use_local_image_pull"`
}

// proxyLines returns the lines that configure a node in containerd.
func proxyLines(address, root string, remapIDs bool) string {
	capabilities := `"rebase"`
	if remapIDs {
		capabilities += `, "remap-ids"`
	}
	return fmt.Sprintf(`[proxy_plugins.lighter]
  type = "snapshot"
  address = %q
  capabilities = [%s]
  [proxy_plugins.lighter.exports]
    root = %q
    enable_remote_snapshot_annotations = "true"`, address, capabilities, root)
}

const unpackLines = `[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "lighter"`

// judgeConfig judges the configuration of a containerd of that version (vMAJOR.MINOR.PATCH; empty:
// unknown) for a node with that address and root. remapIDs is the node's setting; imagesAlone
// reports that its trust is image.
func judgeConfig(text []byte, version, address, root string, remapIDs, imagesAlone bool) ([]Finding, error) {
	var c containerdConfig
	if err := toml.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	j := judgement{c: c, version: release(version, c.Version), remapIDs: remapIDs, imagesAlone: imagesAlone}
	j.proxy(address, root)
	if j.version >= 2_00 {
		j.transfer()
	}
	j.cri()
	return j.findings, nil
}

// release returns a version as a number, 2.1 as 201. For an unknown version it returns the newest
// one with this version of the configuration.
func release(version string, config int) int {
	var major, minor int
	if n, err := fmt.Sscanf(version, "v%d.%d", &major, &minor); n == 2 && err == nil {
		return 100*major + minor
	}
	if config <= 2 {
		return 1_07
	}
	return 2_03
}

// judgement is one examination of a configuration.
type judgement struct {
	c        containerdConfig
	version  int
	remapIDs bool // of the node
	findings []Finding

	imagesAlone bool // the node's trust is image
}

// unnamed adds the finding for a client that does not report the image of a layer.
func (j *judgement) unnamed(who, mend string) {
	if !j.imagesAlone {
		j.add(Warning, who+" does not name images to the node: lighter status cannot name them, and for an image with a base "+
			"in the hub one more index is fetched", mend)
		return
	}
	j.add(Problem, who+` does not name images to the node, whose trust is "image": no image is lazy, except one whose `+
		`manifest claims to be another, which then gets that one's files`, mend)
}

func (j *judgement) add(level Level, what, mend string) {
	j.findings = append(j.findings, Finding{Area: "containerd", Level: level, What: what, Mend: mend})
}

func (j *judgement) proxy(address, root string) {
	lines := proxyLines(address, root, j.remapIDs)
	p, ok := j.c.Proxies[pluginName]
	if !ok {
		what := "there is no proxy plugin " + pluginName
		for name, other := range j.c.Proxies {
			if other.Address == address {
				what = "the node's proxy plugin is called " + name + ": its name has to be " + pluginName +
					", or containerd does not keep all layers of an image"
			}
		}
		j.add(Problem, what, lines)
		return
	}
	found := len(j.findings)
	if p.Type != "snapshot" {
		j.add(Problem, fmt.Sprintf("the proxy plugin %s has the type %q", pluginName, p.Type), lines)
	}
	if p.Address != address {
		j.add(Problem, fmt.Sprintf("the proxy plugin %s has the address %q, and the node listens on %q",
			pluginName, p.Address, address), lines)
	}
	j.extras(p, root, lines)
	if len(j.findings) == found {
		j.add(OK, "the proxy plugin "+pluginName+" is right", "")
	}
}

// extras examines the settings of proxy plugins that later versions of containerd added.
func (j *judgement) extras(p proxyPlugin, root, lines string) {
	if j.version >= 2_01 && !slices.Contains(p.Capabilities, "rebase") {
		j.add(Warning, "the proxy plugin "+pluginName+` lacks the capability "rebase": containerd unpacks one layer after the other`, lines)
	}
	switch remapIDs := slices.Contains(p.Capabilities, "remap-ids"); {
	case remapIDs && !j.remapIDs:
		j.add(Problem, "the proxy plugin "+pluginName+
			` has the capability "remap-ids", and the node runs without remap_ids: files would have wrong owners`, lines)
	case !remapIDs && j.remapIDs:
		j.add(Problem, "the proxy plugin "+pluginName+
			` lacks the capability "remap-ids", and the node runs with remap_ids: owners would be mapped twice`, lines)
	}
	if j.version >= 1_07 && p.Exports["root"] != root {
		j.add(Warning, fmt.Sprintf("the proxy plugin %s exports the root %q, and the node's is %q: the kubelet does not see the disk that images use",
			pluginName, p.Exports["root"], root), lines)
	}
	if j.version >= 2_00 && p.Exports["enable_remote_snapshot_annotations"] != "true" {
		j.unnamed("the proxy plugin "+pluginName+" does not export enable_remote_snapshot_annotations: containerd's transfer service",
			lines)
	}
}

// transfer examines the transfer service, which ctr and nerdctl use since containerd 2.0.
func (j *judgement) transfer() {
	if slices.Contains(j.c.Disabled, "io.containerd.transfer.v1.local") {
		j.add(Warning, "the transfer service is disabled: ctr images pull needs --local, and fetches all layers first",
			`remove "io.containerd.transfer.v1.local" from disabled_plugins`)
		return
	}
	for _, u := range j.c.Plugins.Transfer.Unpack {
		if u.Snapshotter == pluginName && (u.Platform == "" || strings.HasPrefix(u.Platform, "linux")) {
			j.add(OK, "the transfer service unpacks for "+pluginName, "")
			return
		}
	}
	j.add(Problem, "the transfer service has no unpack_config for "+pluginName+": ctr images pull --snapshotter lighter fails", unpackLines)
}

// cri examines CRI, which the kubelet uses.
func (j *judgement) cri() {
	images, table := j.c.Plugins.CRI.Containerd, `plugins."io.containerd.grpc.v1.cri".containerd`
	if j.c.Version >= 3 {
		images, table = j.c.Plugins.Images, `plugins."io.containerd.cri.v1.images"`
	}
	disabled := func(name string) bool { return slices.Contains(j.c.Disabled, name) }
	switch {
	case disabled("io.containerd.cri.v1.images") || disabled("io.containerd.grpc.v1.cri") || disabled("cri"):
	case images.Snapshotter != pluginName:
		j.add(OK, fmt.Sprintf("Kubernetes' images are not the node's: CRI uses %q (for %s: [%s] snapshotter = %q, disable_snapshot_annotations = false)",
			images.Snapshotter, pluginName, table, pluginName), "")
	case j.version >= 2_01 && !images.Local: // CRI uses the transfer service, which the plugin's exports configure
		j.add(OK, "CRI uses "+pluginName, "")
	case images.DisableAnnotations == nil || *images.DisableAnnotations:
		j.unnamed("CRI uses "+pluginName+" and", "["+table+"]\n  disable_snapshot_annotations = false")
	default:
		j.add(OK, "CRI uses "+pluginName, "")
	}
}
