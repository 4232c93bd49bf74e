package apptainer_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/node/apptainer"
)

// write writes the layer of an image with a config over tree, and returns its directory.
func write(t *testing.T, tree string, config v1.ImageConfig) (dir string) {
	t.Helper()
	text, err := json.Marshal(v1.Image{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := apptainer.Write(dir, tree, text); err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs one of the image's scripts, with the machine's shell and programs.
func run(t *testing.T, dir, script string, environment []string, args ...string) string {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{filepath.Join(dir, ".singularity.d", script)}, args...)...)
	cmd.Env = environment
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

func TestRunScriptTakesEntryPointCommandAndArguments(t *testing.T) {
	for _, c := range []struct {
		name                string
		entrypoint, command []string
		args                []string
		want                string
	}{
		{"command", nil, []string{"echo", "a  b", "it's"}, nil, "a  b it's\n"},
		{"arguments replace the command", nil, []string{"false"}, []string{"echo", "mine"}, "mine\n"},
		{"entry point with the command", []string{"printf", "%s|"}, []string{"a b", "$HOME"}, nil, "a b|$HOME|"},
		{"entry point with arguments", []string{"printf", "%s|"}, []string{"a"}, []string{"b", "c d"}, "b|c d|"},
		{"neither", nil, nil, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := write(t, t.TempDir(), v1.ImageConfig{Entrypoint: c.entrypoint, Cmd: c.command})
			if got := run(t, dir, "runscript", os.Environ(), c.args...); got != c.want {
				t.Errorf("runscript printed %q, want %q", got, c.want)
			}
		})
	}
}

func TestEnvironmentIsQuotedAndYieldsToTheCallers(t *testing.T) {
	dir := write(t, t.TempDir(), v1.ImageConfig{Env: []string{
		"PATH=/image/bin", "A=$(touch /tmp/x) `id` \"'\\ b", "B=image", "C=", "bad-name=1", "D=two\nlines", "E",
		"F=a=b",
	}})
	script := filepath.Join(dir, ".singularity.d/env/10-docker2singularity.sh")
	cmd := exec.Command("/bin/sh", "-c", `. "$0"; printf '%s|' "$PATH" "$A" "$B" "$C" "$D" "$F"`, script)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "B=caller"}
	out, err := cmd.CombinedOutput()
	want := "/image/bin|$(touch /tmp/x) `id` \"'\\ b|caller||two\nlines|a=b|"
	if err != nil || string(out) != want {
		t.Errorf("the environment is %q (%v), want %q", out, err, want)
	}
}

func TestLayerHidesNothingOfTheTree(t *testing.T) {
	tree := t.TempDir()
	for _, dir := range []string{"etc", "tmp", "root", "usr/var"} {
		if err := os.MkdirAll(filepath.Join(tree, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Unix(1_000_000_000, 0)
	for _, err := range []error{
		os.WriteFile(filepath.Join(tree, "etc/hosts"), []byte("own"), 0o644),
		os.Symlink("/usr/var", filepath.Join(tree, "var")),
		os.WriteFile(filepath.Join(tree, "environment"), []byte("own"), 0o644),
		os.Chmod(filepath.Join(tree, "etc"), 0o751),
		os.Lchown(filepath.Join(tree, "etc"), os.Getuid(), os.Getgid()),
		os.Chtimes(filepath.Join(tree, "etc"), old, old),
		os.Chmod(tree, 0o711),
		os.Chtimes(tree, old, old),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := write(t, tree, v1.ImageConfig{})
	for _, name := range []string{"etc/hosts", "var", "environment", "tmp", "root"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Errorf("the layer has %s, which the tree has, too (%v)", name, err)
		}
	}
	for _, name := range []string{"etc/resolv.conf", "dev", "proc", "sys", "home", "singularity", ".run"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Errorf("the layer lacks what the tree lacks: %v", err)
		}
	}
	for name, mode := range map[string]os.FileMode{"etc": 0o751, ".": 0o711} {
		stat, err := os.Stat(filepath.Join(dir, name))
		if err != nil || stat.Mode().Perm() != mode || !stat.ModTime().Equal(old) {
			t.Errorf("%s has mode %v and time %v (%v), want the tree's", name, stat.Mode(), stat.ModTime(), err)
		}
	}
}

func TestImageWithFilesOfItsOwnKeepsThem(t *testing.T) {
	tree := t.TempDir()
	if err := os.Mkdir(filepath.Join(tree, ".singularity.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	dir := write(t, tree, v1.ImageConfig{Cmd: []string{"false"}})
	for _, name := range []string{".singularity.d", "singularity", ".run"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Errorf("the layer has %s over an image that has its own (%v)", name, err)
		}
	}
}

func TestLabels(t *testing.T) {
	dir := write(t, t.TempDir(), v1.ImageConfig{Labels: map[string]string{"a": "\"quoted\""}})
	text, err := os.ReadFile(filepath.Join(dir, ".singularity.d/labels.json"))
	var labels map[string]string
	if err = errors.Join(err, json.Unmarshal(text, &labels)); err != nil || labels["a"] != "\"quoted\"" {
		t.Errorf("labels.json has %s (%v)", text, err)
	}
	text, err = os.ReadFile(filepath.Join(write(t, t.TempDir(), v1.ImageConfig{}), ".singularity.d/labels.json"))
	if err != nil || strings.TrimSpace(string(text)) != "{}" {
		t.Errorf("labels.json of an image without labels has %q (%v), want {}", text, err)
	}
}

func TestConfigThatIsNoJSON(t *testing.T) {
	if err := apptainer.Write(t.TempDir(), t.TempDir(), []byte("{")); err == nil {
		t.Error("a config that is no JSON was accepted")
	}
}
