package containerd

import (
	"slices"
	"strings"

	"lighter/install/tomltext"
)

// snapshotter is the name of the node in containerd.
const snapshotter = "lighter"

// Names of containerd's plugins.
const (
	transferPlugin = "io.containerd.transfer.v1.local"
	imagesPlugin   = "io.containerd.cri.v1.images" // since 2.0
	criPlugin      = "io.containerd.grpc.v1.cri"   // before 2.0
)

// wanted is what a configuration of containerd needs. The files in deploy/containerd are examples
// of it, which a test compares.
type wanted struct {
	number        int // of containerd's version
	format        int // the version of the configuration file; 0: the file has to get one
	address, root string
	capabilities  []string
	cri           bool
	criTable      []string
	unpack        []string // snapshotters for which the transfer service has to unpack, too
	local         bool     // CRI pulls without the transfer service
	discards      bool     // CRI deletes layers after it has unpacked them
	differ        bool     // containerd asks the node for the layers of commits
	differs       []string // if differ: containerd's differs, in the order in which it asks them
	noDiffer      string   // if differ: why the configuration cannot have it
}

var proxyTable = []string{"proxy_plugins", snapshotter}

// settings returns the keys that the configuration needs.
func (w wanted) settings() []tomltext.Setting {
	var settings []tomltext.Setting
	set := func(table []string, key string, value any) {
		settings = append(settings, tomltext.Setting{Table: table, Key: key, Value: value})
	}
	if w.format == 0 {
		set(nil, "version", newFormat(w.number))
	}
	set(proxyTable, "type", "snapshot")
	set(proxyTable, "address", w.address)
	if w.number >= 2_01 {
		set(proxyTable, "capabilities", w.capabilities)
	}
	exports := append(slices.Clone(proxyTable), "exports")
	if w.number >= 1_07 {
		set(exports, "root", w.root)
	}
	if w.number >= 2_00 {
		set(exports, "enable_remote_snapshot_annotations", "true")
	}
	if w.cri {
		set(w.criTable, "snapshotter", snapshotter)
		if w.number < 2_01 || w.local {
			set(w.criTable, "disable_snapshot_annotations", false)
		}
	}
	if w.differ {
		set(differTable, "type", "diff")
		set(differTable, "address", w.address)
		set(diffTable, "default", w.differs)
	}
	return settings
}

// elements returns the tables that arrays of the configuration need in addition.
func (w wanted) elements() []tomltext.Element {
	var elements []tomltext.Element
	for _, name := range w.unpack {
		keys := []tomltext.Setting{{Key: "platform", Value: "linux"}, {Key: "snapshotter", Value: name}}
		if w.differ {
			keys = append(keys, tomltext.Setting{Key: "differ", Value: walking})
		}
		elements = append(elements, tomltext.Element{Array: unpackArray, Keys: keys})
	}
	return elements
}

var unpackArray = []string{"plugins", transferPlugin, "unpack_config"}

// newFormat returns the version of a new configuration file.
func newFormat(number int) int {
	if number < 2_00 {
		return 2
	}
	return 3
}

// notes returns what the user should know about the settings.
func (w wanted) notes() (notes []string) {
	if !w.cri {
		return nil
	}
	if w.number < 1_07 {
		notes = append(notes, "so that the kubelet watches the right disk: "+
			"ln -s "+w.root+" /var/lib/containerd/io.containerd.snapshotter.v1."+snapshotter)
	}
	if w.discards {
		notes = append(notes, "discard_unpacked_layers is set: images that other snapshotters have unpacked, "+
			"the pause image among them, have to be pulled again after the restart (crictl pull IMAGE)")
	}
	return notes
}

// capabilitiesOf returns the capabilities of the proxy plugin: those that the configuration has,
// with "rebase", and with "remap-ids" if, and only if, the node maps owners.
func capabilitiesOf(docs []*tomltext.Document, remapIDs bool) []string {
	capabilities := []string{"rebase"}
	for _, d := range docs {
		value, _ := d.Lookup(append(slices.Clone(proxyTable), "capabilities")...)
		list, _ := value.([]any)
		for _, item := range list {
			if name, ok := item.(string); ok && !slices.Contains(capabilities, name) && name != "remap-ids" {
				capabilities = append(capabilities, name)
			}
		}
	}
	if remapIDs {
		capabilities = append(capabilities, "remap-ids")
	}
	return capabilities
}

// unpackOf returns the snapshotters that unpack_config lacks. If the configuration has no
// unpack_config, containerd's default is added, because a list replaces that. With the node's
// differ, containerd 1.7 needs the list, too: each element has to name containerd's own differ.
func unpackOf(docs []*tomltext.Document, number int, differ bool) []string {
	if number < 2_00 && !differ {
		return nil
	}
	any := false
	for _, d := range docs {
		value, _ := d.Lookup(unpackArray...)
		for _, element := range tablesOf(value) {
			any = true
			platform, _ := element["platform"].(string)
			if element["snapshotter"] == snapshotter && (platform == "" || strings.HasPrefix(platform, "linux")) {
				return nil
			}
		}
	}
	missing := []string{snapshotter}
	if number < 2_00 {
		missing = nil
	}
	if any {
		return missing
	}
	return append([]string{"overlayfs"}, missing...)
}

// tablesOf returns the tables of an array.
func tablesOf(value any) (tables []map[string]any) {
	list, _ := value.([]any)
	for _, item := range list {
		if table, ok := item.(map[string]any); ok {
			tables = append(tables, table)
		}
	}
	return tables
}

// criTables are the tables that may have settings of CRI's pulls, in any version.
var criTables = [][]string{{"plugins", imagesPlugin}, {"plugins", criPlugin}, {"plugins", criPlugin, "containerd"}}

// criHas reports whether a setting of CRI's pulls has a value for which is returns true.
func criHas(docs []*tomltext.Document, is func(value any) bool, key ...string) bool {
	for _, d := range docs {
		for _, table := range criTables {
			if value, ok := d.Lookup(slices.Concat(table, key)...); ok && is(value) {
				return true
			}
		}
	}
	return false
}

func isTrue(value any) bool { return value == true }

// pullsLocally reports whether CRI pulls images itself since containerd 2.1: with
// use_local_image_pull, or with an option that only such pulls have.
func pullsLocally(docs []*tomltext.Document) bool {
	filled := func(value any) bool {
		table, _ := value.(map[string]any)
		return len(table) > 0
	}
	return criHas(docs, isTrue, "use_local_image_pull") || criHas(docs, isTrue, "discard_unpacked_layers") ||
		criHas(docs, isTrue, "image_pull_with_sync_fs") ||
		criHas(docs, func(value any) bool { return value != int64(3) }, "max_concurrent_downloads") ||
		criHas(docs, filled, "registry", "mirrors") || criHas(docs, filled, "registry", "configs") ||
		criHas(docs, filled, "registry", "auths")
}
