package podman

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// defaultStorage is where root's images are. Users have theirs in their home directories.
const (
	defaultStorage = "/var/lib/containers/storage"
	userStorage    = ".local/share/containers/storage"
)

// homes returns the home directories of all users.
func (t *Target) homes() (homes []string) {
	text, err := os.ReadFile(t.Machine.Path("/etc/passwd"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(strings.TrimSpace(line), ":"); len(fields) == 7 && filepath.IsAbs(fields[5]) {
			homes = append(homes, t.Machine.Path(fields[5]))
		}
	}
	slices.Sort(homes)
	return slices.Compact(homes)
}

// record is a layer, an image or a container in a storage's lists.
type record struct {
	ID     string   `json:"id"`
	Parent string   `json:"parent"`
	Names  []string `json:"names"`
	Layer  string   `json:"layer"`
}

// readRecords reads a list. A storage that does not exist, or cannot be read, has none.
func readRecords(storage, kind string) (records []record) {
	text, err := os.ReadFile(filepath.Join(storage, "overlay-"+kind, kind+".json"))
	if err != nil || json.Unmarshal(text, &records) != nil {
		return nil
	}
	return records
}

// users returns the images and containers of this machine that need a layer of the store.
func (t *Target) users(c config) (users []string) {
	ours := map[string]bool{}
	for _, store := range c.ours() {
		for _, layer := range readRecords(store, "layers") {
			ours[layer.ID] = true
		}
	}
	root := defaultStorage
	if value, ok := c.Doc.Lookup("storage", "graphroot"); ok && value != "" {
		root = fmt.Sprint(value)
	}
	storages := []string{t.Machine.Path(root)}
	for _, home := range t.homes() {
		storages = append(storages, filepath.Join(home, userStorage))
	}
	for _, storage := range storages {
		parents := map[string]string{}
		for _, layer := range readRecords(storage, "layers") {
			parents[layer.ID] = layer.Parent
		}
		needs := func(layer string) bool {
			for range len(parents) + 1 {
				parent, local := parents[layer]
				if !local {
					return ours[layer]
				}
				layer = parent
			}
			return false
		}
		for _, kind := range []string{"images", "containers"} {
			for _, r := range readRecords(storage, kind) {
				if needs(r.Layer) {
					name := strings.Join(append(r.Names, r.ID[:min(12, len(r.ID))]), " ")
					users = append(users, fmt.Sprintf("%s %s in %s", strings.TrimSuffix(kind, "s"), name, storage))
				}
			}
		}
	}
	return users
}
