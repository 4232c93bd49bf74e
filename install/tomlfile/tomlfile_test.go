package tomlfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/install"
	"lighter/install/marks"
	"lighter/install/tomltext"
)

var (
	marker   = marks.Marker{Target: "test"}
	settings = []tomltext.Setting{{Table: []string{"a", "b"}, Key: "x", Value: "ours"}}
)

// file reads a file after it got a text; "-": there is none, and no directory for it.
func file(t *testing.T, text string) File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "etc", "config.toml")
	if text != "-" {
		if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return read(t, path)
}

func read(t *testing.T, path string) File {
	t.Helper()
	f, err := Read(path, marker)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// apply gives the file a new text and reads it again.
func apply(t *testing.T, f File, text []byte, err error) File {
	t.Helper()
	if err == nil {
		_, err = install.Machine{}.Apply(t.Context(), &install.Plan{Changes: f.Change(text)}, install.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return read(t, f.Path)
}

// A file gets the settings, and then its previous text, byte for byte. Settings that it has change
// nothing.
func TestSettingsAreUndone(t *testing.T) {
	for _, text := range []string{"-", "", "# mine\n", "[a]\nb = {}\n", "[a.b]\nx = 'mine' # why\n"} {
		f := file(t, text)
		if strings.Contains(text, "{}") {
			if _, err := f.With(settings, nil); !isRefused(err) {
				t.Errorf("%q: got %v, want a refusal", text, err)
			}
			continue
		}
		with, err := f.With(settings, nil)
		f = apply(t, f, with, err)
		doc, err := tomltext.Parse(f.Bytes)
		if err != nil || !doc.Has(settings[0]) || f.Doc.Has(settings[0]) || f.IsNew() != (text == "-") {
			t.Errorf("%q: got %q, %v, new %t; want the setting between marks", text, f.Bytes, err, f.IsNew())
		}
		again, err := f.With(settings, nil)
		if changes := f.Change(again); err != nil || len(changes) > 0 {
			t.Errorf("%q: the second time: %v, %v; want no change", text, changes, err)
		}
		f = apply(t, f, f.Undone.Text, nil)
		_, err = os.Stat(filepath.Dir(f.Path))
		if text == "-" && (f.Bytes != nil || err == nil) || text != "-" && string(f.Bytes) != text {
			t.Errorf("%q: after the removal: %q, directory: %v", text, f.Bytes, err)
		}
	}
	own := "[a.b]\nx = 'ours'\n"
	f := file(t, own)
	if with, err := f.With(settings, nil); err != nil || string(with) != own {
		t.Errorf("with the settings already: got %q, %v", with, err)
	}
}

// Lines that somebody has added to our file stay after the removal, empty ones do not.
func TestAddedLines(t *testing.T) {
	for added, want := range map[string]string{"[user]\n": "[user]\n", "\n": ""} {
		f := file(t, "-")
		with, err := f.With(settings, nil)
		f = apply(t, f, with, err)
		if err := os.WriteFile(f.Path, append(f.Bytes, added...), 0o644); err != nil {
			t.Fatal(err)
		}
		f = read(t, f.Path)
		if f = apply(t, f, f.Undone.Text, nil); string(f.Bytes) != want || (want == "") != (f.Bytes == nil) {
			t.Errorf("%q was added: after the removal the file is %q, want %q", added, f.Bytes, want)
		}
	}
}

func isRefused(err error) bool {
	refused := (*install.Refused)(nil)
	return errors.As(err, &refused)
}

// A file that cannot be edited is refused in one line.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{"a = = 1\n": "no valid TOML: line 1",
		"# >>> lighter install test\n": "line 1: a mark"} {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Read(path, marker)
		if !isRefused(err) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want a refusal with %q", text, err, want)
		}
	}
}
