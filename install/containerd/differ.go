package containerd

import (
	"fmt"
	"slices"

	"lighter/install/tomltext"
)

// Names of differs: the node's, and containerd's own, the only one that unpacks layers.
const (
	differ  = "lighter-diff"
	walking = "walking"
)

var (
	differTable = []string{"proxy_plugins", differ}
	diffTable   = []string{"plugins", "io.containerd.service.v1.diff-service"}
)

// wantDiffer makes w want the node's differ, before those that the configuration lists. version is
// containerd's.
func (w *wanted) wantDiffer(docs []*tomltext.Document, version string) {
	w.differ, w.differs = true, []string{differ}
	for _, d := range docs {
		value, _ := d.Lookup(append(slices.Clone(diffTable), "default")...)
		list, _ := value.([]any)
		for _, item := range list {
			if name, ok := item.(string); ok && !slices.Contains(w.differs, name) {
				w.differs = append(w.differs, name)
			}
		}
	}
	if !slices.Contains(w.differs, walking) {
		w.differs = append(w.differs, walking)
	}
	patch := 0
	if _, err := fmt.Sscanf(version, "v1.7.%d", &patch); w.number < 1_07 || err == nil && patch < 4 {
		w.noDiffer = "containerd " + version + " takes no differs of other programs, 1.7.4 does: leave out --differ"
		return
	}
	if w.number >= 2_04 {
		return // containerd prefers its own differ if an element of unpack_config names none
	}
	for _, d := range docs {
		value, _ := d.Lookup(unpackArray...)
		for _, element := range tablesOf(value) {
			if name, _ := element["differ"].(string); name == "" {
				w.noDiffer = fmt.Sprintf("its unpack_config for %v names no differ, and containerd would choose any: "+
					"add differ = %q", element["snapshotter"], walking)
			}
		}
	}
}
