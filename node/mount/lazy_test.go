package mount

import (
	"os"
	"strings"
	"testing"
)

func TestMountsThatShowATree(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	for line, want := range map[string]string{
		"36 35 0:40 / /n/mounts/" + hex + " ro - erofs /n/trees/" + hex + "/metadata ro,device=/n/devices/1": "/n/trees/" + hex + "/metadata",
		"36 35 0:40 / /mnt ro - erofs /n/trees/" + hex + "/local/metadata ro":                                "/n/trees/" + hex + "/local/metadata",
		"36 35 0:41 / / rw - overlay overlay rw,lowerdir=/n/mounts/" + hex + ":/n/snapshots/empty":           "/n/mounts/" + hex,
		`36 35 0:41 / / rw - overlay overlay rw,lowerdir=/n/snapshots/7/fs:/a\040b/mounts/` + hex + `,x=y`:   "/a b/mounts/" + hex,
		"36 35 0:41 / / rw - overlay overlay rw,lowerdir+=/n/snapshots/7/fs,lowerdir+=/n/mounts/" + hex:      "/n/mounts/" + hex,
		"36 35 0:40 / / ro - erofs /dev/vda2 ro":                                                             "",
		"36 35 0:40 / / ro - erofs /images/root/metadata ro":                                                 "",
		"36 35 0:41 / / rw - overlay overlay rw,lowerdir=/var/lib/images/1/fs":                               "",
		"36 35 0:41 / /n/mounts/" + hex + " rw - tmpfs tmpfs rw":                                             "",
	} {
		m, err := parseMount(line)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.tree(); got != want {
			t.Errorf("%s\nshows %q, want %q", line, got, want)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if tree, err := LazyMount(self); err != nil || tree != "" {
		t.Errorf("this test lies on %q, %v", tree, err)
	}
	if _, err := LazyMount("/does/not/exist"); err == nil {
		t.Error("a file that does not exist")
	}
}
