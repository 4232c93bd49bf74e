package dist

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// contents are files that both kinds of packages have, with their modes.
var contents = map[string]string{
	"/usr/bin/lighter": "-rwxr-xr-x",
	"/usr/lib/systemd/system/lighter-node.service":      "-rw-r--r--",
	"/usr/lib/systemd/system/lighter-hub.service":       "-rw-r--r--",
	"/etc/lighter/node.toml":                            "-rw-r--r--",
	"/etc/lighter/hub.toml":                             "-rw-r--r--",
	"/usr/share/man/man1/lighter.1.gz":                  "-rw-r--r--",
	"/usr/share/bash-completion/completions/lighter":    "-rw-r--r--",
	"/usr/share/doc/lighter/examples/node.toml":         "-rw-r--r--",
	"/usr/share/doc/lighter/third-party-licences.gz":    "-rw-r--r--",
	"/usr/share/fish/vendor_completions.d/lighter.fish": "-rw-r--r--",
}

// configuration are the files that an administrator changes.
var configuration = []string{"/etc/lighter/hub.toml", "/etc/lighter/node.toml"}

// root is a directory into which a package manager installs: it has a shell for the packages'
// scripts, and a systemctl that records its arguments.
type root string

func newRoot(t *testing.T) root {
	t.Helper()
	r := root(t.TempDir())
	r.copy(t, "/bin/sh")
	for _, library := range regexp.MustCompile(`/\S+`).FindAllString(run(t, "ldd", "/bin/sh"), -1) {
		r.copy(t, library)
	}
	r.write(t, "/bin/systemctl", "#!/bin/sh\necho \"$*\" >>/systemctl.log\n"+
		"case \"$*\" in '-q is-active lighter-node') [ -e /node-runs ] ;; '-q is-active '*) exit 3 ;; esac\n", 0o755)
	for _, dir := range []string{"/var/lib/dpkg/info", "/var/lib/dpkg/updates", "/tmp"} {
		r.mkdir(t, dir)
	}
	r.write(t, "/var/lib/dpkg/status", "", 0o644)
	return r
}

func (r root) path(path string) string { return filepath.Join(string(r), path) }

func (r root) mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(r.path(path), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (r root) write(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	r.mkdir(t, filepath.Dir(path))
	if err := os.WriteFile(r.path(path), []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// copy copies a file of the machine to the same path.
func (r root) copy(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, path, string(text), 0o755)
}

// has reports whether a path exists.
func (r root) has(path string) bool {
	_, err := os.Lstat(r.path(path))
	return err == nil
}

// read returns a file's text, or nothing if there is no file.
func (r root) read(path string) string {
	text, _ := os.ReadFile(r.path(path))
	return string(text)
}

// manager installs and removes a package.
type manager struct {
	install, remove []string // commands
	kept            string   // where a changed configuration file is after the removal
	purge           []string // command; none: the removal is all
}

// life installs a package, uses it, and removes it. It checks that the package touches no running
// service, and keeps what administrators and services have written.
func life(t *testing.T, r root, m manager) {
	t.Helper()
	run(t, m.install[0], m.install[1:]...)
	if r.has("/systemctl.log") {
		t.Errorf("without systemd, the package called systemctl: %s", r.read("/systemctl.log"))
	}
	if got := parseVersion(t, run(t, "chroot", string(r), "/usr/bin/lighter", "version", "--json")); got.Release == "" ||
		got.Arch != runtime.GOARCH {
		t.Errorf("the installed program says that it is %+v", got)
	}
	for _, name := range []string{"node", "hub"} {
		run(t, "chroot", string(r), "/usr/bin/lighter", "config", name, "--config", "/etc/lighter/"+name+".toml")
		example := "/usr/share/doc/lighter/examples/" + name + ".toml"
		run(t, "chroot", string(r), "/usr/bin/lighter", "config", name, "--config", example)
	}

	// systemd and a node run from now on.
	r.mkdir(t, "/run/systemd/system")
	r.write(t, "/node-runs", "", 0o644)
	const changed = "# changed\n"
	r.write(t, "/etc/lighter/node.toml", changed, 0o644)
	out, err := exec.CommandContext(t.Context(), m.remove[0], m.remove[1:]...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "cannot remove the package while lighter-node runs") ||
		!r.has("/usr/bin/lighter") {
		t.Errorf("a removal under a running node: %v, %s; want a refusal, and the program still there", err, out)
	}

	// It has ended. Its cache stays.
	if err := os.Remove(r.path("/node-runs")); err != nil {
		t.Fatal(err)
	}
	r.write(t, "/var/lib/lighter/cache/0", "chunks", 0o600)
	said := run(t, m.remove[0], m.remove[1:]...)
	if r.has("/usr/bin/lighter") || r.has("/usr/share/doc/lighter") || r.read(m.kept) != changed {
		t.Errorf("after the removal, program or documents are left, or %s is not the changed file: %s", m.kept, said)
	}
	if m.purge != nil {
		said = run(t, m.purge[0], m.purge[1:]...)
		if r.has("/etc/lighter") {
			t.Error("the purge left /etc/lighter")
		}
	}
	if !r.has("/var/lib/lighter/cache/0") || !strings.Contains(said, "/var/lib/lighter is kept") ||
		strings.Contains(said, "/var/lib/lighter-hub") {
		t.Errorf("the last removal said %q, want that only the cache is kept", said)
	}
	for line := range strings.Lines(r.read("/systemctl.log")) {
		if line = strings.TrimSpace(line); line != "daemon-reload" && !strings.HasPrefix(line, "-q is-active ") {
			t.Errorf("the package called systemctl %s", line)
		}
	}
}

// hasContents checks a list of files, in the format of ls -l.
func hasContents(t *testing.T, list string) {
	t.Helper()
	modes := map[string]string{}
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 5 {
			modes["/"+strings.Trim(fields[len(fields)-1], "./")] = fields[0]
			if strings.Contains(line, "lighter/") && !strings.Contains(line, "root") {
				t.Errorf("a file is not root's: %s", line)
			}
		}
	}
	for path, want := range contents {
		if modes[path] != want {
			t.Errorf("%s has mode %q, want %q", path, modes[path], want)
		}
	}
}

func TestDebianPackages(t *testing.T) {
	for _, arch := range architectures {
		deb := file(t, "lighter_*_"+arch.name+".deb")
		field := func(name string) string { return strings.TrimSpace(run(t, "dpkg-deb", "--field", deb, name)) }
		if field("Package") != "lighter" || field("Architecture") != arch.name ||
			!strings.Contains(filepath.Base(deb), "_"+field("Version")+"_") {
			t.Errorf("%s is of package %s, version %s, for %s", deb, field("Package"), field("Version"),
				field("Architecture"))
		}
		hasContents(t, run(t, "dpkg-deb", "--contents", deb))
		files := strings.Fields(run(t, "dpkg-deb", "--info", deb, "conffiles"))
		if slices.Sort(files); !slices.Equal(files, configuration) {
			t.Errorf("%s has the conffiles %v, want %v", deb, files, configuration)
		}
	}
	r := newRoot(t)
	dpkg := func(args ...string) []string {
		return append([]string{"dpkg", "--root=" + string(r), "--log=/dev/null"}, args...)
	}
	life(t, r, manager{install: dpkg("--install", file(t, "lighter_*_"+runtime.GOARCH+".deb")),
		remove: dpkg("--remove", "lighter"), kept: "/etc/lighter/node.toml", purge: dpkg("--purge", "lighter")})
}

// An upgrade keeps a changed configuration, restarts nothing, and names the running service.
func TestUpgradeOfDebianPackage(t *testing.T) {
	r := newRoot(t)
	install := []string{"--root=" + string(r), "--log=/dev/null", "--install",
		file(t, "lighter_*_"+runtime.GOARCH+".deb")}
	run(t, "dpkg", install...)
	r.mkdir(t, "/run/systemd/system")
	r.write(t, "/node-runs", "", 0o644)
	r.write(t, "/etc/lighter/node.toml", "# changed\n", 0o644)
	out := run(t, "dpkg", install...)
	if !strings.Contains(out, "lighter-node runs the earlier version until: systemctl restart lighter-node") ||
		strings.Contains(r.read("/systemctl.log"), "restart") || r.read("/etc/lighter/node.toml") != "# changed\n" {
		t.Errorf("the upgrade said %q, called systemctl with %q, and left the configuration %q", out,
			r.read("/systemctl.log"), r.read("/etc/lighter/node.toml"))
	}
}

func TestRPMs(t *testing.T) {
	for _, arch := range architectures {
		rpm := file(t, "lighter-*."+arch.rpm+".rpm")
		run(t, "rpm", "--checksig", "--nosignature", rpm)
		query := func(args ...string) string {
			return run(t, "rpm", append([]string{"--query", "--package", rpm}, args...)...)
		}
		want := fmt.Sprintf("lighter %s linux Apache-2.0 localhost", arch.rpm)
		if got := query("--queryformat", "%{NAME} %{ARCH} %{OS} %{LICENSE} %{BUILDHOST}"); got != want {
			t.Errorf("%s is %q, want %q", rpm, got, want)
		}
		hasContents(t, query("--list", "--verbose"))
		files := strings.Fields(query("--configfiles"))
		if slices.Sort(files); !slices.Equal(files, configuration) {
			t.Errorf("%s has the configuration files %v, want %v", rpm, files, configuration)
		}
	}
	r := newRoot(t)
	rpm := func(args ...string) []string {
		return append([]string{"rpm", "--root=" + string(r), "--force-debian", "--nosignature"}, args...)
	}
	life(t, r, manager{install: rpm("--install", "--nodeps", file(t, "lighter-*."+rpmArch()+".rpm")),
		remove: rpm("--erase", "lighter"), kept: "/etc/lighter/node.toml.rpmsave"})
}

// rpmArch returns rpm's name of this machine's architecture.
func rpmArch() string {
	for _, arch := range architectures {
		if arch.name == runtime.GOARCH {
			return arch.rpm
		}
	}
	return ""
}
