package podman

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/install"
	"lighter/install/tomltext"
	"lighter/node"
	"lighter/node/imagestore"
)

// fixture is a machine with an image store, and without Podman.
func fixture(t *testing.T, storageConf string) (*Target, string) {
	t.Helper()
	t.Setenv("PATH", "")
	dir := t.TempDir()
	target := &Target{Machine: install.Machine{System: dir}, Config: "/etc/containers/storage.conf",
		Node: node.DefaultConfig()}
	target.Node.ImageStore = filepath.Join(dir, "store")
	if err := imagestore.Create(target.Node.ImageStore); err != nil {
		t.Fatal(err)
	}
	file := target.Machine.Path(target.Config)
	if storageConf != "" {
		write(t, file, storageConf)
	}
	write(t, filepath.Join(dir, "etc/passwd"), "joe:x:1000:1000::/home/joe:/bin/sh\n")
	return target, file
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

var toInstall, toUninstall = (*Target).Install, (*Target).Uninstall

func apply(
	t *testing.T, target *Target, plan func(*Target, context.Context) (*install.Plan, error),
) *install.Plan {
	t.Helper()
	p, err := plan(target, t.Context())
	if err == nil {
		_, err = target.Machine.Apply(t.Context(), p, install.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The store is added to the user's file, and taken out again byte for byte.
func TestInstallAndUninstall(t *testing.T) {
	for name, text := range map[string]string{
		"no file": "",
		"a file":  "# mine\n[storage]\ndriver = \"overlay\"\n\n[storage.options]\nsize = \"\" # none\n",
		"stores": "[storage]\ndriver = \"overlay\"\n[storage.options]\n" +
			"additionalimagestores = [\n  \"/other\", # ours\n]\n",
		"options": "[storage]\ndriver = \"overlay\"\n[storage.options.overlay]\nmountopt = \"nodev\"",
	} {
		target, file := fixture(t, text)
		apply(t, target, toInstall)
		c, err := target.read()
		if err != nil {
			t.Fatal(err)
		}
		after, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		driver, want := "", []string{target.Node.ImageStore}
		doc, err := tomltext.Parse(after)
		if err == nil {
			value, _ := doc.Lookup("storage", "driver")
			driver, _ = value.(string)
		}
		if name == "stores" {
			want = append([]string{"/other"}, want...)
		}
		if got := storesOf(doc); err != nil || driver != "overlay" || !slices.Equal(got, want) {
			t.Errorf("%s: got driver %q and stores %q, %v; want overlay and %q", name, driver, got, err, want)
		}
		if string(c.Undone.Text) != text {
			t.Errorf("%s: without our lines the file is %q, want %q", name, c.Undone.Text, text)
		}
		if p := apply(t, target, toInstall); len(p.Changes) != 0 {
			t.Errorf("%s: a second run changes %+v", name, p.Changes)
		}
		apply(t, target, toUninstall)
		before, err := os.ReadFile(file)
		if string(before) != text || (text == "") != os.IsNotExist(err) {
			t.Errorf("%s: after uninstall the file is %q, %v; want %q", name, before, err, text)
		}
	}
}

// What would not work is refused.
func TestRefused(t *testing.T) {
	for want, prepare := range map[string]func(x *Target, file string){
		"needs overlay":      func(_ *Target, file string) { write(t, file, "[storage]\ndriver = 'vfs'\n") },
		"has no image store": func(x *Target, _ string) { x.Node.ImageStore = "" },
		"the node makes it":  func(x *Target, _ string) { x.Node.ImageStore += "-none" },
		"is not edited":      func(_ *Target, file string) { write(t, file, "[storage\n") },
	} {
		target, file := fixture(t, "")
		prepare(target, file)
		_, err := target.Install(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// A user's own file is named, because it replaces the system's.
func TestOwnFile(t *testing.T) {
	target, _ := fixture(t, "")
	own := target.Machine.Path("/home/joe/.config/containers/storage.conf")
	write(t, own, "[storage]\n")
	p, err := target.Install(t.Context())
	if err != nil || len(p.Notes) == 0 || !strings.Contains(p.Notes[0], own) {
		t.Errorf("got %+v, %v; want a note about %s", p, err, own)
	}
}

// A file in /etc would replace the distribution's, so none is made.
func TestFileOfTheDistributionIsKept(t *testing.T) {
	target, file := fixture(t, "")
	write(t, target.Machine.Path(distributed), "[storage]\ndriver = \"overlay\"\ngraphroot = \"/elsewhere\"\n")
	_, err := target.Install(t.Context())
	refused := (*install.Refused)(nil)
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "copy that file there first") ||
		!install.Missing(file) {
		t.Errorf("got %v, want an error that says to copy the file", err)
	}
	write(t, file, "[storage]\ndriver = \"overlay\"\ngraphroot = \"/elsewhere\"\n")
	apply(t, target, toInstall)
}

// Images and containers of root and of users that need the store's layers keep it.
func TestInUse(t *testing.T) {
	for storage, want := range map[string]string{
		"/var/lib/containers/storage": "image localhost/new:1 ", "/home/joe/" + userStorage: "container c "} {
		target, _ := fixture(t, "")
		apply(t, target, toInstall)
		write(t, filepath.Join(target.Node.ImageStore, "overlay-layers/layers.json"), `[{"id":"ours"}]`)
		target.Node.ImageStore = "" // the node's configuration has none any more
		at := target.Machine.Path(storage)
		write(t, filepath.Join(at, "overlay-layers/layers.json"), `[{"id":"top","parent":"ours"},{"id":"own"}]`)
		write(t, filepath.Join(at, "overlay-images/images.json"),
			`[{"id":"0123456789abcdef","names":["localhost/new:1"],"layer":"top"},{"id":"b","names":["other"],"layer":"own"}]`)
		write(t, filepath.Join(at, "overlay-containers/containers.json"), `[{"id":"d","names":["c"],"layer":"top"}]`)
		_, err := target.Uninstall(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "other") {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		target.Force = true
		if _, err := target.Uninstall(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
