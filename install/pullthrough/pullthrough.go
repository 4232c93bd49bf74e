// Package pullthrough makes containerd, Podman, Buildah, Skopeo and CRI-O ask a hub before a
// registry, and undoes it. The programs read the files at each pull, so none of them is restarted.
//
// containerd has a file for each registry, hosts.toml. The hub gets a table in it before those that
// others have written, because containerd asks hosts in the order of the file. The tools of Podman
// get a file of their own in registries.conf.d. They take all of a registry's settings from one
// file, so the package refuses a registry that another file is about: its settings would be lost.
package pullthrough

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"lighter/install"
	"lighter/install/marks"
	"lighter/install/tomlfile"
	"lighter/install/tomltext"
)

// Hub is a hub that is asked before registries.
type Hub struct {
	URL        string   // https://HOST[:PORT]; empty: no hub is asked any more
	Registries []string // HOST[:PORT], as in names of images
}

// ContainerdDir is where containerd's clients look for hosts.toml. The CRI plugin looks where its
// config_path says.
const ContainerdDir = "/etc/containerd/certs.d"

// PodmanDir has additional files of registries.conf.
const PodmanDir = "/etc/containers/registries.conf.d"

// dialTimeout is how long containerd waits for a hub that is silent, for each manifest and blob.
const dialTimeout = "1s"

// Check returns an error if no program could use the hub, or a registry is none.
func (h Hub) Check() error {
	if h.URL == "" {
		return nil
	}
	if err := CheckURL(h.URL); err != nil {
		return err
	}
	if len(h.Registries) == 0 {
		return errors.New("no registry is given: want HOST or HOST:PORT, as in names of images")
	}
	for _, host := range h.Registries {
		named, err := reference.ParseNormalizedNamed(host + "/a/b")
		if err != nil || reference.Domain(named) != host || strings.ToLower(host) != host {
			return fmt.Errorf("registry %q: want HOST or HOST:PORT in lower case, as in names of images; "+
				"Docker Hub is docker.io", host)
		}
	}
	return nil
}

// CheckURL returns an error if a URL is not the one of a hub.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || text != u.Scheme+"://"+u.Host {
		return fmt.Errorf("the hub's URL %q: want https://HOST or https://HOST:PORT", text)
	}
	return nil
}

// Containerd returns the changes to the files hosts.toml in a directory. Other registries' files
// lose our lines.
func (h Hub) Containerd(dir string) (changes []install.Change, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "hosts.toml"))
	if err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	if h.URL != "" {
		for _, host := range h.Registries {
			path := filepath.Join(dir, host, "hosts.toml")
			wanted[path] = true
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		if !wanted[path] && !hasMarks(path) {
			continue // whatever it is
		}
		file, err := tomlfile.Read(path, marker)
		if err != nil {
			return nil, install.ByHand(err, h.containerdLines())
		}
		text := file.Undone.Text
		if wanted[path] && !h.isFirst(file.Doc) {
			if text, err = file.WithTables(h.containerdLines()); err != nil {
				return nil, install.ByHand(err, h.containerdLines())
			}
		}
		changes = append(changes, file.Change(text)...)
	}
	return live(changes), nil
}

// marker marks our lines in containerd's files.
var marker = marks.Marker{Target: "containerd"}

// hasMarks reports whether a file has lines of ours.
func hasMarks(path string) bool {
	text, err := install.Read(path)
	return err == nil && marker.In(text.Bytes)
}

// isFirst reports whether a user's own file asks the hub already, and nothing else.
func (h Hub) isFirst(doc *tomltext.Document) bool {
	hosts, _ := doc.Lookup("host")
	table, _ := hosts.(map[string]any)
	_, ok := table[h.URL]
	return ok && len(table) == 1
}

func (h Hub) containerdLines() string {
	table := []string{"host", h.URL}
	return tomltext.Lines([]tomltext.Setting{{Table: table, Key: "capabilities", Value: []string{"pull", "resolve"}},
		{Table: table, Key: "dial_timeout", Value: dialTimeout}}, nil)
}

// own is the file with our lines in registries.conf.d.
const own = "lighter-hub.conf"

// Podman returns the changes to our file in the directory registries.conf.d.
func (h Hub) Podman(dir string) ([]install.Change, error) {
	file, err := tomlfile.Read(filepath.Join(dir, own), marks.Marker{Target: "podman"})
	if err != nil {
		return nil, install.ByHand(err, h.podmanLines())
	}
	text := file.Undone.Text
	if h.URL != "" {
		if err := h.others(dir); err != nil {
			return nil, install.ByHand(err, h.podmanLines())
		}
		if text, err = file.WithTables(h.podmanLines()); err != nil {
			return nil, install.ByHand(err, h.podmanLines())
		}
	}
	return live(file.Change(text)), nil
}

// others returns an error if another file is about one of the registries.
func (h Hub) others(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*.conf"))
	if err != nil {
		return err
	}
	for _, path := range append(paths, strings.TrimSuffix(dir, ".d")) {
		if filepath.Base(path) == own {
			continue
		}
		file, err := tomlfile.Read(path, marks.Marker{Target: "podman"})
		if err != nil {
			return err
		}
		tables, _ := file.Doc.Lookup("registry")
		list, _ := tables.([]any)
		for _, one := range list {
			table, _ := one.(map[string]any)
			for _, key := range []string{"prefix", "location"} {
				if host, _ := table[key].(string); slices.Contains(h.Registries, host) {
					return &install.Refused{Path: path, Why: "it has settings of its own for " + host +
						": add the hub there, as the first [[registry.mirror]]"}
				}
			}
		}
	}
	return nil
}

func (h Hub) podmanLines() string {
	var b strings.Builder
	scheme, at, _ := strings.Cut(h.URL, "://")
	for _, host := range h.Registries {
		location := at + "/" + strings.ReplaceAll(host, ":", "_")
		fmt.Fprintf(&b, "[[registry]]\n  location = %q\n  [[registry.mirror]]\n    location = %q\n", host, location)
		if scheme == "http" {
			b.WriteString("    insecure = true\n")
		}
	}
	return b.String()
}

// live says of changes that programs read the files at each pull.
func live(changes []install.Change) []install.Change {
	for i := range changes {
		changes[i].Live = true
	}
	return changes
}
