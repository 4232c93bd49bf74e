package mount

import (
	"strings"
	"testing"
)

func TestParseMount(t *testing.T) {
	for _, test := range []struct{ line, dir, source string }{
		{"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue", "/mnt2", "/dev/root"},
		{"36 35 0:40 / /a\\040b\\011c\\134d ro - erofs /x/meta\\012data ro", "/a b\tc\\d", "/x/meta\ndata"},
		{"36 35 0:41 / /n ro shared:1 master:2 propagate_from:3 - fuse.lighter lighter ro,user_id=0", "/n", "lighter"},
		{"36 35 0:41 / /n ro - tmpfs  rw", "/n", ""},
		{`36 35 0:41 / /n\04 ro - tmpfs \999 rw`, `/n\04`, `\999`},
	} {
		m, err := parseMount(test.line)
		if err != nil || m.dir != test.dir || m.source != test.source || m.number == "" {
			t.Errorf("%q: %+v, %v", test.line, m, err)
		}
	}
	for _, bad := range []string{"", " - ", "36 35 98:0 /mnt1 - ext3 /dev/root", "36 35 98:0 / /mnt2 rw ext3 /dev/root rw", "36 35 98:0 / /mnt2 rw - ext3"} {
		if _, err := parseMount(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func FuzzParseMount(f *testing.F) {
	f.Add(`36 35 0:40 / /a\040b ro - erofs /x\134 ro`)
	f.Fuzz(func(t *testing.T, line string) {
		m, err := parseMount(line)
		if err == nil && strings.ContainsAny(m.dir, " ") && !strings.Contains(line, `\040`) {
			t.Errorf("%q: a blank in %q", line, m.dir)
		}
	})
}

func TestMountPointsSeesTheRoot(t *testing.T) {
	mounts, err := mountPoints("/")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := mounts["/proc"]; !ok {
		t.Errorf("no /proc among %d mounts", len(mounts))
	}
	if mounts, err := mountPoints("/proc/self/net"); err != nil || len(mounts) != 0 {
		t.Errorf("below a directory without mounts: %v, %v", mounts, err)
	}
	if _, err := mountPoints("/does/not/exist"); err == nil {
		t.Error("a root that does not exist")
	}
}
