// Package podman makes Podman, Buildah, Skopeo and CRI-O on this machine read a node's image store,
// and ask a hub before registries (package pullthrough), and undoes it.
//
// It adds the store to additionalimagestores in the system's storage.conf (package tomltext). The
// store has to exist: with a configured store that does not exist, every command of these tools
// fails. The new file is read by Podman itself before the tools can read it.
//
// Uninstall refuses while an image or container of this machine needs a layer of the store. It
// looks at the storage of root and of all users in /etc/passwd, at its usual place.
package podman

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lighter/install"
	"lighter/install/marks"
	"lighter/install/pullthrough"
	"lighter/install/tomlfile"
	"lighter/install/tomltext"
	"lighter/node"
)

// Target is the storage configuration of this machine.
type Target struct {
	Machine install.Machine
	Config  string          // storage.conf
	Node    node.Config     // of the node
	Hub     pullthrough.Hub // which is asked before registries
	Force   bool            // uninstall although images and containers need the store
}

// DefaultConfig is the file that the tools read for root, and for users without a file of their
// own.
const DefaultConfig = "/etc/containers/storage.conf"

// distributed is the file of the distribution, which the tools read only if there is no
// DefaultConfig.
const distributed = "/usr/share/containers/storage.conf"

// timeout bounds each wait for a program.
const timeout = time.Minute

var marker = marks.Marker{Target: "podman"}

// config is the configuration file.
type config struct{ tomlfile.File }

// read reads the configuration.
func (t *Target) read() (config, error) {
	file, err := tomlfile.Read(t.Machine.Path(t.Config), marker)
	return config{file}, err
}

// stores returns the additional image stores of the user.
func (c config) stores() []string { return storesOf(c.Doc) }

// ours returns the stores that our lines have added.
func (c config) ours() (stores []string) {
	now, err := tomltext.Parse(c.Bytes)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(storesOf(now), func(store string) bool { return slices.Contains(c.stores(), store) })
}

func storesOf(doc *tomltext.Document) (stores []string) {
	value, _ := doc.Lookup("storage", "options", "additionalimagestores")
	list, _ := value.([]any)
	for _, s := range list {
		if store, ok := s.(string); ok {
			stores = append(stores, store)
		}
	}
	return stores
}

func setting(stores []string) tomltext.Setting {
	return tomltext.Setting{Table: []string{"storage", "options"}, Key: "additionalimagestores", Value: stores}
}

// Install plans the configuration of the tools.
func (t *Target) Install(ctx context.Context) (*install.Plan, error) {
	through, err := t.Hub.Podman(t.Machine.Path(pullthrough.PodmanDir))
	if err != nil {
		return nil, err
	}
	store := t.Node.ImageStore
	if store == "" && t.Hub.URL != "" {
		c, err := t.read()
		if err != nil {
			return nil, err
		}
		p := t.plan(c)
		p.Changes, p.Check = through, t.checkRegistries
		return p, nil
	}
	if store == "" {
		return nil, errors.New("the node has no image store: set image_store in its configuration " +
			"(image_store = \"/var/lib/lighter-images\"), and restart it")
	}
	if _, err := os.Stat(filepath.Join(store, "overlay-images", "images.lock")); err != nil {
		return nil, fmt.Errorf("find the image store (the node makes it when it starts): %w", err)
	}
	c, err := t.read()
	if err != nil {
		return nil, refuse(err, []string{store})
	}
	if theirs := t.Machine.Path(distributed); c.Bytes == nil && c.Path == t.Machine.Path(DefaultConfig) &&
		!install.Missing(theirs) {
		return nil, refuse(&install.Refused{Path: c.Path, Why: fmt.Sprintf("it does not exist, and the tools would "+
			"not read %s any more if it did: copy that file there first", theirs)}, []string{store})
	}
	stores := c.stores()
	if !slices.Contains(stores, store) {
		stores = append(stores, store)
	}
	settings := []tomltext.Setting{setting(stores)}
	p := t.plan(c)
	driver := "overlay"
	if name, ok := c.Doc.Lookup("storage", "driver"); ok && name != "" {
		driver = fmt.Sprint(name)
	} else if c.IsNew() {
		// A file replaces what the tools do without one.
		storage := []string{"storage"}
		settings = append([]tomltext.Setting{{Table: storage, Key: "driver", Value: driver},
			{Table: storage, Key: "runroot", Value: "/run/containers/storage"},
			{Table: storage, Key: "graphroot", Value: defaultStorage}}, settings...)
	}
	if driver != "overlay" {
		return nil, fmt.Errorf("%s has the storage driver %s: the image store needs overlay", c.Path, driver)
	}
	text, err := c.With(settings, nil)
	if err != nil {
		return nil, refuse(err, stores)
	}
	p.Changes = append(c.Change(text), through...)
	p.Check = func(ctx context.Context, staged map[string]string) error {
		if err := t.checkRegistries(ctx, staged); err != nil || staged[c.Path] == "" {
			return err
		}
		return t.check(ctx, "images", "CONTAINERS_STORAGE_CONF="+staged[c.Path])
	}
	p.Notes = t.notes(store)
	return p, nil
}

func refuse(err error, stores []string) error {
	return install.ByHand(err, tomltext.Lines([]tomltext.Setting{setting(stores)}, nil))
}

func (t *Target) plan(c config) *install.Plan {
	return &install.Plan{Target: "podman", Found: []string{"the tools' configuration: " + c.Path,
		"the node's image store: " + cmp.Or(t.Node.ImageStore, "none")}}
}

// checkRegistries lets Podman, or another tool, read the new file about registries.
func (t *Target) checkRegistries(ctx context.Context, staged map[string]string) error {
	for path, file := range staged {
		if filepath.Dir(path) == t.Machine.Path(pullthrough.PodmanDir) {
			return t.check(ctx, "info", "CONTAINERS_REGISTRIES_CONF="+file)
		}
	}
	return nil
}

// check lets Podman, or another tool, run a command with a new file.
func (t *Target) check(ctx context.Context, command, variable string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, tool := range []string{"podman", "buildah"} {
		program, err := exec.LookPath(tool)
		if err != nil {
			continue
		}
		if err := install.Trusted(program); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, program, command)
		cmd.Env = append(os.Environ(), variable)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", tool, command, err, install.LastLine(out))
		}
		return nil
	}
	return nil // only CRI-O or Skopeo: they have no command that reads the storage alone
}

// notes says what the change does not reach.
func (t *Target) notes(store string) (notes []string) {
	for _, home := range t.homes() {
		own := filepath.Join(home, ".config", "containers", "storage.conf")
		text, err := os.ReadFile(own)
		if err == nil && !bytes.Contains(text, []byte(store)) {
			notes = append(notes, own+" replaces "+t.Config+" for its user: add "+store+
				" to additionalimagestores in [storage.options] there, too")
		}
	}
	for _, file := range []string{"/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*.conf"} {
		found, _ := filepath.Glob(t.Machine.Path(file)) // the pattern is valid
		for _, path := range found {
			if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte("storage_option")) {
				notes = append(notes, path+" mentions storage_option, which replaces the options of "+t.Config+
					" for CRI-O: if it is set, add \"overlay.imagestore="+store+"\" there")
			}
		}
	}
	return append(notes, "services that run already (podman.service, crio.service) see the store after a restart")
}

// Uninstall plans the configuration without the store.
func (t *Target) Uninstall(context.Context) (*install.Plan, error) {
	c, err := t.read()
	if err != nil {
		return nil, err
	}
	if !t.Force {
		if users := t.users(c); len(users) > 0 {
			return nil, fmt.Errorf("layers of the image store are in use: remove these first (podman rm, podman rmi), "+
				"or give --force, after which every command of the tools fails: %s", strings.Join(users, ", "))
		}
	}
	through, err := pullthrough.Hub{}.Podman(t.Machine.Path(pullthrough.PodmanDir))
	if err != nil {
		return nil, err
	}
	p := t.plan(c)
	p.Changes = append(c.Change(c.Undone.Text), through...)
	if c.Undone.Blocks > 0 {
		p.Notes = []string{"the node keeps the store until image_store is removed from its configuration; " +
			"the store's directory can be deleted then"}
	}
	return p, nil
}
