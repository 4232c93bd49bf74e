//go:build e2e

package node

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"lighter/test/testkit/eventually"
	tars "lighter/test/testkit/tarball"
)

// shell is a layer with a shell, and large.
func shell(t *testing.T) []byte {
	t.Helper()
	entries := []tars.Item{tars.File("large", string(large)), tars.File("etc/hosts", "the image's own")}
	for _, name := range []string{"bin/sh", "lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/libc.so.6"} {
		program, err := os.ReadFile("/" + name)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, tars.File(name, string(program), tars.Mode(0o755)))
	}
	return tars.Of(entries...)
}

// apptainer starts an image as Apptainer does without set-user-ID: a read-only bind of the
// directory, an overlay with a writable layer in memory over it, and the machine's files mounted on
// the image's. Then it sources the image's environment, and runs its run script.
const apptainer = `exec setpriv --reuid=65534 --regid=65534 --clear-groups unshare -Urm sh -ec '
	mount -t tmpfs session /mnt; cd /mnt; mkdir image upper work root
	mount --bind "$1" image; mount -o remount,bind,ro,nosuid,nodev image
	mount -t overlay -o lowerdir=image,upperdir=upper,workdir=work overlay root
	mount --rbind /proc root/proc; mount --rbind /dev root/dev; mount --bind /etc/hosts root/etc/hosts
	test -e root/etc/resolv.conf; test -d root/var/tmp; test "$(wc -c <root/large)" = 5242880
	export GREETING="$2"; shift 2
	exec chroot root /bin/sh -ec "for f in /.singularity.d/env/*.sh; do . \$f; done; exec /.singularity.d/runscript \"\$@\"" sh "$@"
	' sh "$@"`

// Images in a directory for Apptainer carry their environment and entry point. The layer ends with
// the image's use.
func TestDirectoryForApptainer(t *testing.T) {
	addImage(t, "flat.example.org/a/shell:1", shell(t), v1.Config{
		Env:        []string{"PATH=/bin", "GREETING=it's from the image", "OTHER=$(echo no)"},
		Entrypoint: []string{"/bin/sh", "-c", `echo "$PATH|$GREETING|$OTHER|$*"`, "name"}, Cmd: []string{"a", "b c"},
	})
	d, dir := startDirectory(t, "--directory-idle", "1s", "--directory-flat", "apptainer",
		"--directory-links", "old.example.org=flat.example.org")
	image := filepath.Join(dir, "flat.example.org/a/shell:1")
	for _, c := range []struct{ greeting, args, want string }{
		{"", "", "/bin|it's from the image|$(echo no)|a b c\n"},
		{"mine", " x 'y  z'", "/bin|mine|$(echo no)|x y  z\n"},
	} {
		script := `set -- "$1" "` + c.greeting + `"` + c.args + "\n" + apptainer
		if got := sh(t, image, script); got != c.want {
			t.Errorf("the container printed %q, want %q", got, c.want)
		}
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(image, &stat); err != nil {
		t.Fatal(err)
	}
	if want := int64(unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV); stat.Flags&want != want {
		t.Errorf("the mount has flags %#x, want read-only, nosuid and nodev", stat.Flags)
	}
	if out := sh(t, dir, "readlink $1/old.example.org; cat $1/old.example.org/a/shell:1/etc/hosts"); out !=
		"flat.example.org\nthe image's own" {
		t.Errorf("through the link: %q", out)
	}
	// A process that does not see the mount.
	sh(t, dir, `exec unshare -m --propagation private sh -ec '
		test "$(cat "$1/flat.example.org/a/shell:1/.singularity.d/labels.json")" = "{}"' sh "$1"`)
	eventually.Holds(t, "the image to be unmounted, and its device to end", func() bool {
		i, ok := inDirectory(t, d, "flat.example.org/a/shell:1")
		return ok && !i.Mounted && devices(t, d) == 0
	})
	if left, err := os.ReadDir(filepath.Join(d.root, "merged/directory.json")); err != nil || len(left) != 0 {
		t.Errorf("%d layers are left (%v)", len(left), err)
	}
	sh(t, image, "cat $1/.singularity.d/runscript") // mounted again, from the kept config
	d.end(syscall.SIGKILL)
	d.start()
	sh(t, image, "cat $1/.singularity.d/runscript")
}

// A directory for one group can be used by its members alone, also by those for whom it is a
// supplementary group, and also when others have just looked a name up.
func TestDirectoryForAGroup(t *testing.T) {
	_, dir := startDirectory(t, "--directory-group", "nogroup")
	member, other := "setpriv --reuid=1 --regid=1 --groups=65534 ", "setpriv --reuid=1 --regid=1 --clear-groups "
	for range 2 {
		if out := sh(t, dir, member+"cat $1/tools:1/text"); out != "linux/amd64" {
			t.Errorf("a member of the group reads %q, want linux/amd64", out)
		}
		for _, command := range []string{"cat $1/tools:1/text", "ls $1", "ls $1/tools:1", "env -C $1/tools:1 true"} {
			cmd := exec.CommandContext(t.Context(), "timeout", "60", "sh", "-c",
				other+`sh -c '`+command+`' sh "$1"`, "sh", dir)
			out, err := cmd.CombinedOutput()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) ||
				!strings.Contains(string(out), "Permission denied") {
				t.Errorf("%s as another user: got %s (%v), want that it is not permitted", command, out, err)
			}
		}
	}
	shows(t, filepath.Join(dir, "tools:1"))
}
