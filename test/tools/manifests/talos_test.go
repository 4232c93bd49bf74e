package manifests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const talosDir = "../../../deploy/image/talos"

// extensionManifest is the manifest of a system extension, as Talos documents it.
type extensionManifest struct {
	Version  string `json:"version"`
	Metadata struct {
		Name          string `json:"name"`
		Version       string `json:"version"`
		Author        string `json:"author"`
		Description   string `json:"description"`
		Compatibility struct {
			Talos struct {
				Version string `json:"version"`
			} `json:"talos"`
		} `json:"compatibility"`
	} `json:"metadata"`
}

// extensionService is an extension service, as Talos documents it.
type extensionService struct {
	Name      string `json:"name"`
	Container struct {
		Entrypoint  string   `json:"entrypoint"`
		Environment []string `json:"environment"`
		Args        []string `json:"args"`
		Mounts      []struct {
			Source      string   `json:"source"`
			Destination string   `json:"destination"`
			Type        string   `json:"type"`
			Options     []string `json:"options"`
		} `json:"mounts"`
		Security struct {
			WriteableRootfs   bool     `json:"writeableRootfs"`
			WriteableSysfs    bool     `json:"writeableSysfs"`
			MaskedPaths       []string `json:"maskedPaths"`
			ReadonlyPaths     []string `json:"readonlyPaths"`
			RootfsPropagation string   `json:"rootfsPropagation"`
		} `json:"security"`
	} `json:"container"`
	Depends      []dependency `json:"depends"`
	Restart      string       `json:"restart"`
	LogToConsole bool         `json:"logToConsole"`
}

// dependency has one of its fields.
type dependency struct {
	Service       string   `json:"service"`
	Path          string   `json:"path"`
	Network       []string `json:"network"`
	Time          bool     `json:"time"`
	Configuration bool     `json:"configuration"`
}

// strictly decodes a file of the extension. An unknown field is an error.
func strictly(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(talosDir, name))
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// The extension of Talos follows the published specification.
func TestTalosManifest(t *testing.T) {
	var m extensionManifest
	strictly(t, "manifest.yaml", &m)
	versions := regexp.MustCompile(`^>= v\d+\.\d+\.\d+$`)
	if m.Version != "v1alpha1" || m.Metadata.Name != "lighter" || m.Metadata.Author == "" ||
		m.Metadata.Description == "" || !versions.MatchString(m.Metadata.Compatibility.Talos.Version) {
		t.Errorf("got %+v, want version v1alpha1 with all fields", m)
	}
}

func TestTalosServices(t *testing.T) {
	for name, propagation := range map[string]string{"lighter": "rshared", "lighter-keeper": "rslave"} {
		var s extensionService
		strictly(t, name+".yaml", &s)
		if err := s.check(); err != "" || s.Name != name || s.Restart != "always" {
			t.Errorf("%s: %s: got %+v, want a service of its file's name that is always restarted", name, err, s)
		}
		// containerd has to see the node's mounts, and the keeper must not keep them busy.
		var root []string
		for _, m := range s.Container.Mounts {
			if m.Destination == "/var/lib/lighter" {
				root = m.Options
			}
		}
		shared := s.Container.Security.RootfsPropagation == "shared"
		if !slices.Contains(root, propagation) || shared != (propagation == "rshared") {
			t.Errorf("%s: the node's root has the options %v, want %s", name, root, propagation)
		}
	}
}

// check returns what Talos would refuse, or "".
func (s extensionService) check() string {
	c := s.Container
	switch {
	case !regexp.MustCompile(`^[-_a-z0-9]+$`).MatchString(s.Name):
		return "the name"
	case !slices.Contains([]string{"never", "always", "untilSuccess"}, s.Restart):
		return "the restart kind"
	case c.Entrypoint == "" || filepath.IsAbs(c.Entrypoint):
		return "the entrypoint, which has to be relative"
	case !slices.Contains([]string{"", "private", "shared", "slave"}, c.Security.RootfsPropagation):
		return "the propagation"
	}
	for _, m := range c.Mounts {
		if m.Type != "bind" || !filepath.IsAbs(m.Source) || !filepath.IsAbs(m.Destination) ||
			!slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind") {
			return "the mount of " + m.Destination
		}
	}
	for _, d := range s.Depends {
		given := 0
		for _, is := range []bool{d.Service != "", d.Path != "", len(d.Network) > 0, d.Time, d.Configuration} {
			if is {
				given++
			}
		}
		for _, n := range d.Network {
			if !slices.Contains([]string{"addresses", "connectivity", "hostname", "etcfiles"}, n) {
				return "the network dependency " + n
			}
		}
		if given != 1 || d.Path != "" && !strings.HasPrefix(d.Path, "/") {
			return "a dependency, which needs exactly one field"
		}
	}
	return ""
}
