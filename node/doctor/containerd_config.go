package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// pluginName is the name that containerd has to use for the snapshotter: a label that protects
// snapshots from containerd's garbage collector contains it (package front/containerd).
const pluginName = "lighter"

// containerdConfig is the part of containerd's configuration that is examined. It fits versions 2
// (containerd 1.6 and 1.7), 3 (since containerd 2.0) and 4 of the format.
type containerdConfig struct {
	Version  int                    `toml:"version"`
	Disabled []string               `toml:"disabled_plugins"`
	Proxies  map[string]proxyPlugin `toml:"proxy_plugins"`
	Plugins  struct {
		Transfer struct {
			Unpack []unpackConfig `toml:"unpack_config"`
		} `toml:"io.containerd.transfer.v1.local"`
		Diff struct {
			Order []string `toml:"default"`
		} `toml:"io.containerd.service.v1.diff-service"`
		Images criImages `toml:"io.containerd.cri.v1.images"`
		CRI    struct {
			Containerd criImages `toml:"containerd"`
		} `toml:"io.containerd.grpc.v1.cri"`
	} `toml:"plugins"`
}

// Beginnings of findings.
const (
	CRIUses    = "CRI uses " + pluginName                                   // the kubelet's pulls use the node
	DifferUses = "containerd asks the node for the layers of docker commit" // before its own differ
)

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

// nodeSettings are the settings of a node to which containerd's configuration has to fit.
type nodeSettings struct {
	address, root string
	remapIDs      bool
	trustImage    bool   // the node's trust is "image"
	install       string // the command that makes the configuration fit
}

// judgeConfig judges the configuration of a containerd. version is vMAJOR.MINOR.PATCH, or empty if
// it is unknown.
func judgeConfig(text []byte, version string, n nodeSettings) ([]Finding, error) {
	var c containerdConfig
	if err := toml.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	v := release(version, c.Version)
	if c.images().Snapshotter == pluginName {
		n.install += " --cri" // a command without a flag takes its lines away
	}
	if c.differ(n) != "" {
		n.install += " --differ"
	}
	found := c.judgeProxy(v, n)
	if v >= 2_00 {
		found = append(found, c.judgeTransfer(n)...)
	}
	if v >= 1_07 {
		found = append(found, c.judgeDiff(n)...)
	}
	return append(found, c.judgeCRI(v, n)...), nil
}

// Release returns a version of containerd as a number: 201 for v2.1.0, and 0 if it is no version.
func Release(version string) int {
	var major, minor int
	if n, err := fmt.Sscanf(version, "v%d.%d", &major, &minor); n != 2 || err != nil {
		return 0
	}
	return 100*major + minor
}

// release returns a version of containerd as Release does. If the version is unknown, it returns a
// release whose configuration has the format version config.
func release(version string, config int) int {
	if number := Release(version); number > 0 {
		return number
	}
	if config <= 2 {
		return 1_07
	}
	return 2_03
}

// unnamed returns the rule for a pull service of containerd (client) that does not tell the node to
// which image a layer belongs.
func (n nodeSettings) unnamed(holds bool, client string) rule {
	if n.trustImage {
		return rule{holds, Problem, client + ` does not name images to the node, whose trust is "image": no image ` +
			`is lazy, and a manifest that names another image in its annotations gets that image's files`, n.install}
	}
	return rule{holds, Warning, client + " does not name images to the node: lighter status cannot name them, " +
		"and if the hub knows an image's base image, too, a pull fetches the indexes of both", n.install}
}

// judgeProxy judges the proxy plugin. Some of the plugin's settings exist only in later versions of
// containerd.
func (c *containerdConfig) judgeProxy(version int, n nodeSettings) []Finding {
	const plugin = "the proxy plugin " + pluginName
	p, ok := c.Proxies[pluginName]
	if !ok {
		what := "there is no proxy plugin " + pluginName
		for name, other := range c.Proxies {
			if other.Address == n.address && other.Type != "diff" {
				what = "the node's proxy plugin is called " + name + ": its name has to be " + pluginName +
					", or containerd does not keep all layers of an image"
			}
		}
		return []Finding{{Level: Problem, What: what, Repair: n.install}}
	}
	remaps := slices.Contains(p.Capabilities, "remap-ids")
	return all(plugin+" is right", []rule{
		{p.Type != "snapshot", Problem, fmt.Sprintf("%s has the type %q", plugin, p.Type), n.install},
		{p.Address != n.address, Problem,
			fmt.Sprintf("%s has the address %q, and the node listens on %q", plugin, p.Address, n.address), n.install},
		{version >= 2_01 && !slices.Contains(p.Capabilities, "rebase"), Warning,
			plugin + ` lacks the capability "rebase": containerd unpacks one layer after the other`, n.install},
		{remaps && !n.remapIDs, Problem,
			plugin + ` has the capability "remap-ids", and the node runs without remap_ids: ` +
				"files would have wrong owners", n.install},
		{!remaps && n.remapIDs, Problem,
			plugin + ` lacks the capability "remap-ids", and the node runs with remap_ids: ` +
				"owners would be mapped twice", n.install},
		{version >= 1_07 && p.Exports["root"] != n.root, Warning,
			fmt.Sprintf("%s exports the root %q, and the node's is %q: "+
				"the kubelet does not see the disk that images use", plugin, p.Exports["root"], n.root), n.install},
		n.unnamed(version >= 2_00 && p.Exports["enable_remote_snapshot_annotations"] != "true",
			plugin+" does not export enable_remote_snapshot_annotations: containerd's transfer service"),
	})
}

// disables reports whether the configuration disables one of the plugins.
func (c *containerdConfig) disables(plugins ...string) bool {
	return slices.ContainsFunc(plugins, func(name string) bool { return slices.Contains(c.Disabled, name) })
}

// judgeTransfer judges the transfer service, which ctr and nerdctl use since containerd 2.0.
func (c *containerdConfig) judgeTransfer(n nodeSettings) []Finding {
	unpacks := slices.ContainsFunc(c.Plugins.Transfer.Unpack, func(u unpackConfig) bool {
		return u.Snapshotter == pluginName && (u.Platform == "" || strings.HasPrefix(u.Platform, "linux"))
	})
	return first([]rule{
		{c.disables("io.containerd.transfer.v1.local"), Warning,
			"the transfer service is disabled: ctr images pull needs --local, and fetches all layers first",
			`remove "io.containerd.transfer.v1.local" from disabled_plugins`},
		{unpacks, OK, "the transfer service unpacks for " + pluginName, ""},
		{true, Problem, "the transfer service has no unpack_config for " + pluginName +
			": ctr images pull --snapshotter lighter fails", n.install},
	})
}

// differ returns the name of a plugin for the node's differ, or "".
func (c *containerdConfig) differ(n nodeSettings) string {
	for plugin, p := range c.Proxies {
		if p.Type == "diff" && p.Address == n.address {
			return plugin
		}
	}
	return ""
}

// judgeDiff judges which differs containerd asks, and in which order. containerd's own differ,
// walking, is the only one that can unpack layers.
func (c *containerdConfig) judgeDiff(n nodeSettings) []Finding {
	order, name := c.Plugins.Diff.Order, c.differ(n)
	ours, walking := slices.Index(order, name), slices.Index(order, "walking")
	return first([]rule{
		{name == "", OK, "containerd makes the layers of docker commit, nerdctl commit and ctr snapshots diff " +
			"by itself, and reads whole images for that (to change that: " + n.install + " --differ)", ""},
		{len(order) > 0 && walking < 0, Problem, fmt.Sprintf("containerd's differs are %v: without walking, it "+
			"unpacks no layer", order), n.install},
		{ours < 0 || ours > walking, Warning, fmt.Sprintf("containerd never asks the node's differ %s: "+
			"its differs are %v", name, order), n.install},
		{true, OK, DifferUses + ", nerdctl commit and ctr snapshots diff", ""},
	})
}

// images returns the settings of CRI's pulls.
func (c *containerdConfig) images() criImages {
	if c.Version >= 3 {
		return c.Plugins.Images
	}
	return c.Plugins.CRI.Containerd
}

// judgeCRI judges CRI, which the kubelet uses. Since containerd 2.1, CRI pulls images through the
// transfer service by default. In that case containerd passes the names of images to the node only
// if an export of the proxy plugin enables this.
func (c *containerdConfig) judgeCRI(version int, n nodeSettings) []Finding {
	if c.disables("io.containerd.cri.v1.images", "io.containerd.grpc.v1.cri", "cri") {
		return nil
	}
	images := c.images()
	transfers := version >= 2_01 && !images.Local
	annotates := images.DisableAnnotations != nil && !*images.DisableAnnotations
	return first([]rule{
		{images.Snapshotter != pluginName, OK, fmt.Sprintf("Kubernetes does not use the node: the snapshotter of "+
			"CRI is %q (to use %s: %s --cri)", images.Snapshotter, pluginName, n.install), ""},
		{transfers || annotates, OK, CRIUses, ""},
		n.unnamed(true, CRIUses+" and"),
	})
}
