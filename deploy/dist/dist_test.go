// Package dist tests the release that `build` has written to the repository's directory dist. Run
// `make dist`, which does both.
//
// The packages are installed into a small root directory with Debian's dpkg and rpm, which needs
// the rights of root. Its systemctl only records what it was asked. The binary of the other
// architecture runs in QEMU's user mode.
package dist

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const (
	repository = "../.."
	release    = repository + "/dist"
)

// architectures are those of a release.
var architectures = []struct {
	name, rpm, qemu string
	machine         elf.Machine
}{
	{"amd64", "x86_64", "qemu-x86_64-static", elf.EM_X86_64},
	{"arm64", "aarch64", "qemu-aarch64-static", elf.EM_AARCH64},
}

// run runs a program and returns what it printed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// file returns the path of the only file of the release that a pattern matches.
func file(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(release, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("the release has the files %v for %s (%v), want one", found, pattern, err)
	}
	path, err := filepath.Abs(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// printed is what `lighter version --json` prints, as far as the tests need it.
type printed struct{ Release, Commit, OS, Arch string }

func parseVersion(t *testing.T, out string) (p printed) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return p
}

func TestChecksumsAreOfAllFiles(t *testing.T) {
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = release
	out, err := check.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var checked, files []string
	for line := range strings.Lines(string(out)) {
		checked = append(checked, strings.TrimSuffix(strings.TrimSpace(line), ": OK"))
	}
	err = filepath.WalkDir(release, func(path string, e os.DirEntry, err error) error {
		if name, _ := filepath.Rel(release, path); err == nil && !e.IsDir() && name != "SHA256SUMS" {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(checked)
	slices.Sort(files)
	if !slices.Equal(checked, files) {
		t.Errorf("the checksums are of\n%v\nwant those of all files:\n%v", checked, files)
	}
}

// Each binary is static, is for its architecture, was built reproducibly, and runs.
func TestBinaries(t *testing.T) {
	for _, arch := range architectures {
		path := file(t, "lighter-*-"+arch.name)
		binary, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if binary.Machine != arch.machine || binary.Section(".interp") != nil || binary.Section(".dynamic") != nil {
			t.Errorf("%s is for %v, or not static; want a static binary for %v", path, binary.Machine, arch.machine)
		}
		if err := binary.Close(); err != nil {
			t.Error(err)
		}
		settings := settingsOf(t, path)
		if settings["CGO_ENABLED"] != "0" || settings["-trimpath"] != "true" || settings["GOARCH"] != arch.name {
			t.Errorf("%s was built with %v, want no cgo, -trimpath and GOARCH %s", path, settings, arch.name)
		}
		command := []string{path, "version", "--json"}
		if arch.name != runtime.GOARCH {
			command = append([]string{arch.qemu}, command...)
		}
		got := parseVersion(t, run(t, command[0], command[1:]...))
		if got.OS != "linux" || got.Arch != arch.name || got.Commit != settings["vcs.revision"] || got.Release == "" {
			t.Errorf("%s says that it is %+v, want linux, %s, and commit %s", path, got, arch.name,
				settings["vcs.revision"])
		}
	}
}

// settingsOf returns with which settings the go command has built a binary.
func settingsOf(t *testing.T, path string) map[string]string {
	t.Helper()
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	return settings
}

// The formats are the same on both architectures: their golden files and properties hold.
func TestFormatsOnTheOtherArchitecture(t *testing.T) {
	for _, arch := range architectures {
		if arch.name == runtime.GOARCH {
			continue
		}
		test := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-exec", arch.qemu, "./format/...")
		test.Dir, test.Env = repository, append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch.name)
		if out, err := test.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", arch.name, err, out)
		}
	}
}

// A second build, into another directory, gives the same bytes.
func TestReleaseIsReproducible(t *testing.T) {
	again := filepath.Join(t.TempDir(), "again")
	run(t, "./build", again)
	want, err := os.ReadFile(filepath.Join(release, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(again, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the second build has the checksums\n%s\nwant\n%s", got, want)
	}
}

// Each command has a page, which man formats without a warning.
func TestManual(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(release, "man", "*.1.gz"))
	if err != nil || len(pages) < 40 {
		t.Fatalf("there are %d pages (%v), want at least 40", len(pages), err)
	}
	var names []string
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".1.gz")
		names = append(names, name)
		format := exec.CommandContext(t.Context(), "man", "--warnings", "--local-file", page)
		format.Env = append(os.Environ(), "MANWIDTH=100", "MANPAGER=cat", "LC_ALL=C.UTF-8")
		var stderr bytes.Buffer
		format.Stderr = &stderr
		out, err := format.Output()
		if err != nil || stderr.Len() > 0 {
			t.Errorf("man %s: %v: %s", name, err, stderr.Bytes())
		}
		if command := strings.ReplaceAll(name, "-", " "); !strings.Contains(string(out), command) {
			t.Errorf("the page %s does not name the command %s:\n%s", name, command, out)
		}
	}
	for _, want := range []string{"lighter", "lighter-node", "lighter-hub-key-add", "lighter-config-node",
		"lighter-version"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no page %s", want)
		}
	}
	if slices.Contains(names, "lighter-keeper") {
		t.Error("there is a page for a command that only the node uses")
	}
}

// bash completes commands with the script. The function stands for that of bash-completion.
func TestCompletionInBash(t *testing.T) {
	bin := t.TempDir()
	if err := os.Symlink(file(t, "lighter-*-"+runtime.GOARCH), filepath.Join(bin, "lighter")); err != nil {
		t.Fatal(err)
	}
	const script = `_init_completion() { words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=ver prev=lighter; }
PATH=$2:$PATH; . "$1"; COMP_WORDS=(lighter ver) COMP_CWORD=1 COMP_LINE="lighter ver" COMP_POINT=11
__start_lighter lighter ver lighter; printf '%s\n' "${COMPREPLY[@]}"`
	out := run(t, "bash", "-c", script, "bash", file(t, "completions/lighter.bash"), bin)
	if !strings.Contains(out, "verify") || !strings.Contains(out, "version") {
		t.Errorf("bash completes ver to %q, want verify and version", out)
	}
}
