//go:build e2e

package differ

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A script changes files below root. Its methods fail the test.
type script struct {
	t    *testing.T
	root string
}

func (s script) at(path string) string { return filepath.Join(s.root, path) }

func (s script) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s script) write(path, text string)  { s.must(os.WriteFile(s.at(path), []byte(text), 0o644)) }
func (s script) mkdir(path string)        { s.must(os.Mkdir(s.at(path), 0o755)) }
func (s script) remove(path string)       { s.must(os.RemoveAll(s.at(path))) }
func (s script) symlink(to, path string)  { s.must(os.Symlink(to, s.at(path))) }
func (s script) link(old, path string)    { s.must(os.Link(s.at(old), s.at(path))) }
func (s script) rename(old, path string)  { s.must(os.Rename(s.at(old), s.at(path))) }
func (s script) chmod(path string, m int) { s.must(syscall.Chmod(s.at(path), uint32(m))) }
func (s script) chown(path string, id int) {
	s.must(os.Lchown(s.at(path), id, id))
}

func (s script) mknod(path string, mode uint32, major, minor uint32) {
	s.must(unix.Mknod(s.at(path), mode|0o644, int(unix.Mkdev(major, minor))))
}

func (s script) xattr(path, name, value string) {
	s.must(unix.Lsetxattr(s.at(path), name, []byte(value), 0))
}

// touch sets the time of a file or link.
func (s script) touch(path string, sec, nsec int64) {
	times := []unix.Timespec{{Sec: sec, Nsec: nsec}, {Sec: sec, Nsec: nsec}}
	s.must(unix.UtimesNanoAt(unix.AT_FDCWD, s.at(path), times, unix.AT_SYMLINK_NOFOLLOW))
}

// old is the time of the files in the base, in whole seconds, as in most layers.
const old = 1_500_000_000

// capabilities is a value of the xattr security.capability.
const capabilities = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// base fills a directory with files of all kinds.
func (s script) base() {
	for _, dir := range []string{"etc", "etc/conf.d", "usr", "usr/bin", "usr/lib", "usr/lib/a", "usr/lib/a/b", "var",
		"var/empty", "tmp", "a"} {
		s.mkdir(dir)
	}
	for _, file := range []string{"etc/passwd", "etc/hosts", "etc/conf.d/one", "etc/conf.d/two", "usr/bin/tool",
		"usr/lib/a/b/deep", "usr/lib/a/file", "var/log", "a/x", "a.b", "a-b"} {
		s.write(file, "contents of "+file+"\n")
	}
	s.write("etc/empty", "")
	s.link("usr/bin/tool", "usr/bin/same")
	s.link("usr/bin/tool", "usr/lib/third")
	s.symlink("passwd", "etc/link")
	s.symlink("nowhere", "etc/dangling")
	s.symlink("usr/bin", "bin")
	s.mknod("tmp/fifo", unix.S_IFIFO, 0, 0)
	s.mknod("tmp/null", unix.S_IFCHR, 1, 3)
	s.write("usr/bin/ping", "ping")
	s.xattr("usr/bin/ping", "security.capability", capabilities)
	s.chown("var/log", 33)
	s.must(filepath.WalkDir(s.root, func(path string, _ os.DirEntry, err error) error {
		if err == nil && path != s.root {
			rest, _ := filepath.Rel(s.root, path)
			s.touch(rest, old, 0)
		}
		return err
	}))
}

// kinds are changes by containers.
var kinds = map[string]func(s script){
	"nothing":         func(script) {},
	"a new file":      func(s script) { s.write("etc/new", "new") },
	"a changed file":  func(s script) { s.write("etc/hosts", "changed") },
	"a longer file":   func(s script) { s.write("etc/hosts", strings.Repeat("x", 1<<20)) },
	"an emptied file": func(s script) { s.must(os.Truncate(s.at("etc/hosts"), 0)) },
	"the same contents": func(s script) {
		s.write("etc/hosts", "contents of etc/hosts\n")
		s.touch("etc/hosts", old, 0)
	},
	"contents, same time": func(s script) {
		s.write("etc/hosts", "contents of etc/HOSTS\n")
		s.touch("etc/hosts", old, 0)
	},
	"a fraction of a second": func(s script) {
		s.write("etc/hosts", "contents of etc/HOSTS\n")
		s.touch("etc/hosts", old, 1)
	},
	"the same empty file": func(s script) {
		s.chmod("etc/empty", 0o600)
		s.chmod("etc/empty", 0o644)
	},
	"touched":     func(s script) { s.touch("etc/hosts", old+1, 500); s.touch("etc/conf.d", old+1, 0) },
	"before 1970": func(s script) { s.write("etc/new", "x"); s.touch("etc/new", -1, 999_999_999) },
	"modes": func(s script) {
		s.chmod("etc/hosts", 0o4755)
		s.chmod("usr/lib", 0o1777)
		s.chmod("etc", 0o700)
	},
	"owners": func(s script) {
		s.chown("etc/hosts", 1000)
		s.chown("etc/link", 3_000_000)
		s.chown("usr/lib/a", 5)
	},
	"a deleted file":      func(s script) { s.remove("etc/hosts") },
	"a deleted directory": func(s script) { s.remove("usr/lib") },
	"deleted links": func(s script) {
		s.remove("etc/link")
		s.remove("etc/dangling")
		s.remove("bin")
	},
	"a deleted name": func(s script) { s.remove("usr/bin/same") },
	"all deleted": func(s script) {
		s.remove("etc")
		s.remove("usr")
		s.remove("a")
		s.remove("a.b")
		s.remove("a-b")
	},
	"an emptied directory": func(s script) {
		s.remove("etc/conf.d/one")
		s.remove("etc/conf.d/two")
	},
	"new and deleted again": func(s script) {
		s.write("etc/new", "x")
		s.remove("etc/new")
		s.mkdir("d")
		s.remove("d")
	},
	"a directory instead": func(s script) {
		s.remove("etc/hosts")
		s.mkdir("etc/hosts")
		s.write("etc/hosts/x", "x")
	},
	"a file instead": func(s script) { s.remove("usr/lib"); s.write("usr/lib", "file") },
	"a link instead of a file": func(s script) {
		s.remove("etc/hosts")
		s.symlink("passwd", "etc/hosts")
	},
	"a link instead of a dir": func(s script) { s.remove("usr/lib"); s.symlink("bin", "usr/lib") },
	"a directory for a link": func(s script) {
		s.remove("bin")
		s.mkdir("bin")
		s.write("bin/tool", "tool")
	},
	"another link": func(s script) {
		s.remove("etc/link")
		s.symlink("hosts!", "etc/link")
		s.touch("etc/link", old, 0)
	},
	"the same link": func(s script) {
		s.remove("etc/link")
		s.symlink("passwd", "etc/link")
		s.touch("etc/link", old, 0)
	},
	"a replaced directory": func(s script) {
		s.remove("etc/conf.d")
		s.mkdir("etc/conf.d")
		s.write("etc/conf.d/three", "3")
	},
	"a replaced empty one": func(s script) { s.remove("var/empty"); s.mkdir("var/empty") },
	"the same directory": func(s script) {
		s.remove("usr/lib/a")
		s.mkdir("usr/lib/a")
		s.touch("usr/lib/a", old, 0)
	},
	"a replaced tree": func(s script) {
		s.remove("usr")
		s.mkdir("usr")
		s.mkdir("usr/lib")
		s.write("usr/lib/a", "file")
	},
	"a replaced tree, partly": func(s script) {
		s.remove("usr")
		s.mkdir("usr")
		s.mkdir("usr/bin")
		s.write("usr/bin/tool", "t")
	},
	"a tree that came back": func(s script) {
		s.remove("a")
		s.mkdir("a")
		s.write("a/x", "contents of a/x\n")
		s.touch("a/x", old, 0)
	},
	"new directories": func(s script) {
		s.must(os.MkdirAll(s.at("new/very/deep"), 0o700))
		s.write("new/very/deep/file", "x")
	},
	"a deep file": func(s script) { s.write("usr/lib/a/b/new", "x") },
	"a new name":  func(s script) { s.link("etc/hosts", "etc/hosts2") },
	"a new name before": func(s script) {
		s.link("etc/passwd", "aaa")
		s.link("etc/passwd", "zzz")
	},
	"a new name of three":  func(s script) { s.link("usr/bin/tool", "usr/fourth") },
	"one of three changed": func(s script) { s.write("usr/bin/tool", "changed") },
	"new names of a new file": func(s script) {
		s.write("n", "n")
		s.link("n", "etc/n")
		s.link("n", "usr/n")
		s.link("n", "a/n")
	},
	"a new name, then changed": func(s script) {
		s.link("etc/hosts", "etc/hosts2")
		s.write("etc/hosts2", "both")
	},
	"a name of a link":    func(s script) { s.link("etc/link", "etc/link2") },
	"a name of a FIFO":    func(s script) { s.link("tmp/fifo", "tmp/fifo2") },
	"a renamed file":      func(s script) { s.rename("etc/hosts", "etc/renamed") },
	"a file renamed over": func(s script) { s.rename("etc/hosts", "etc/passwd") },
	"a renamed new directory": func(s script) {
		s.mkdir("d")
		s.write("d/x", "x")
		s.rename("d", "usr/lib/d")
	},
	"a directory renamed over": func(s script) {
		s.mkdir("d")
		s.write("d/x", "x")
		s.must(unix.Rename(s.at("d"), s.at("var/empty")))
	},
	"names in order": func(s script) {
		s.write("a/y", "1")
		s.write("a.b", "2")
		s.write("a-b", "3")
		s.write("a0", "4")
	},
	"names out of order": func(s script) {
		s.remove("a")
		s.write("a!", "1")
		s.remove("a-b")
		s.write("a.c", "4")
	},
	"names like whiteouts": func(s script) {
		s.write("etc/.wh.x", "x")
		s.mkdir("etc/.wh..wh..opq")
	},
	"a long name": func(s script) {
		s.write("etc/"+strings.Repeat("long", 60), "x")
		s.write("etc/ü\nn", "x")
	},
	"a FIFO and devices": func(s script) {
		s.mknod("p", unix.S_IFIFO, 0, 0)
		s.mknod("b", unix.S_IFBLK, 7, 300)
	},
	"a device like a whiteout": func(s script) {
		s.mknod("c", unix.S_IFCHR, 0, 1)
		s.mknod("z", unix.S_IFCHR, 5, 0)
	},
	"another device": func(s script) {
		s.remove("tmp/null")
		s.mknod("tmp/null", unix.S_IFCHR, 1, 5)
		s.touch("tmp/null", old, 0)
	},
	"capabilities": func(s script) { s.xattr("etc/hosts", "security.capability", capabilities) },
	"no capabilities": func(s script) {
		s.must(unix.Lremovexattr(s.at("usr/bin/ping"), "security.capability"))
	},
	"capabilities as before": func(s script) {
		s.chmod("usr/bin/ping", 0o600)
		s.chmod("usr/bin/ping", 0o644)
		s.xattr("usr/bin/ping", "security.capability", capabilities)
	},
	"xattrs": func(s script) {
		s.xattr("etc/hosts", "user.x", "y")
		s.xattr("etc", "trusted.x", "y")
	},
	"a file with holes": func(s script) {
		s.write("sparse", "")
		s.must(os.Truncate(s.at("sparse"), 3<<20))
	},
	"only a directory's time": func(s script) { s.touch("usr/lib/a", old+5, 0) },
	"all of a directory's same": func(s script) {
		s.write("etc/new", "x")
		s.remove("etc/new")
		s.touch("etc", old, 0)
	},
}
