//go:build e2e

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/workdir"
)

// addDebian adds the image debian:1, a Debian with a shell, to the hub.
func addDebian(t *testing.T) {
	t.Helper()
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	layout := "oci:" + filepath.Join(work, "images", "base") + ":latest"
	if added := run(t, "add", layout, "debian:1"); added.code != 0 {
		t.Fatalf("add debian:1: exit code %d: %s", added.code, added.stderr)
	}
}

// inContainer describes a container's root from inside: its system, its type, who the user is, and
// that the root cannot be written.
const inContainer = `. /etc/os-release; echo $ID $(stat -f -c %t /) $(id -u); touch /x 2>/dev/null || echo read-only`

// debian is what inContainer prints in debian:1 for a user.
func debian(uid string) string { return "debian e0f5e1e2 " + uid + "\nread-only\n" }

// Charliecloud takes an image that is not mounted yet as the root of a user's container: the
// kernel's EROFS, with the user's own ID or as root.
func TestDirectoryIsTheRootOfCharliecloud(t *testing.T) {
	addDebian(t)
	_, dir := startDirectory(t)
	image := filepath.Join(dir, "debian:1")
	user := "cd /; exec setpriv --reuid=65534 --regid=65534 --clear-groups env -i PATH=$PATH USER=nobody HOME=/ ch-run "
	if out := sh(t, image, user+"$1 -- sh -c '"+inContainer+"'"); out != debian("65534") {
		t.Errorf("ch-run: got %q, want %q", out, debian("65534"))
	}
	if out := sh(t, image, user+"--uid 0 --gid 0 $1 -- sh -c '"+inContainer+"'"); out != debian("0") {
		t.Errorf("ch-run --uid 0: got %q, want %q", out, debian("0"))
	}
	if out := sh(t, image, user+"-b /usr/bin:/mnt $1 -- ls /mnt/ch-run"); out != "/mnt/ch-run\n" {
		t.Errorf("ch-run --bind: got %q, want the program of the machine", out)
	}
}

// systemd-nspawn takes an image that is not mounted yet as a container's root, read-only, with its
// own users, and with a writable /var. To be writable as a whole, the image has to have a path
// without a colon.
func TestDirectoryIsTheRootOfNspawn(t *testing.T) {
	addDebian(t)
	d, dir := startDirectory(t)
	image := filepath.Join(dir, "debian:1")
	nspawn := nspawnCommand(t)
	if out := sh(t, image, nspawn+"--read-only -D $1 sh -c '"+inContainer+"'"); out != debian("0") {
		t.Errorf("systemd-nspawn --read-only: got %q, want %q", out, debian("0"))
	}
	owners := "stat -c %u /etc/passwd; awk '{ print $2 != $1 }' /proc/self/uid_map"
	if out := sh(t, image, nspawn+`--read-only --private-users=pick -D $1 sh -c "`+
		strings.ReplaceAll(owners, "$", `\$`)+`"`); out != "0\n1\n" {
		t.Errorf("systemd-nspawn --private-users: got %q, want a file of root and mapped users", out)
	}
	if out := sh(t, image, nspawn+"--volatile=state -D $1 sh -c 'touch /var/x; "+inContainer+"'"); out != debian("0") {
		t.Errorf("systemd-nspawn --volatile=state: got %q, want %q", out, debian("0"))
	}
	mounted := t.TempDir()
	run(t, "mount", "--root", d.root, "debian:1", mounted).good()
	defer func() { run(t, "unmount", "--root", d.root, mounted).good() }()
	if out := sh(t, mounted, nspawn+"--volatile=overlay -D $1 sh -c 'echo new >/etc/x; cat /etc/x'"); out != "new\n" {
		t.Errorf("systemd-nspawn --volatile=overlay: got %q, want new", out)
	}
}

// nspawnCommand returns the beginning of a shell command that runs Debian's systemd-nspawn, which
// is not installed. It asks no systemd for a unit, and its files below /run are hidden from the
// host.
func nspawnCommand(t *testing.T) string {
	t.Helper()
	const run = "/run/systemd"
	if err := os.MkdirAll(run, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(run, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	library, err := filepath.Glob(filepath.Join(work, "nspawn/usr/lib/*/systemd/libsystemd-shared-*.so"))
	if err != nil || len(library) != 1 {
		t.Fatalf("found %q as the library of systemd-nspawn (%v): run test/setup tools", library, err)
	}
	return "exec env LD_PRELOAD=" + library[0] + " " + filepath.Join(work, "nspawn/usr/bin/systemd-nspawn") +
		" --quiet --pipe --register=no --keep-unit --resolv-conf=off --timezone=off </dev/null "
}
