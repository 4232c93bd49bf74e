package mount

import (
	"os"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestMountsThatShowATree(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	for line, want := range map[string]string{
		"36 35 0:40 / /n/mounts/" + hex + " ro - erofs /n/trees/" + hex + "/metadata ro,device=/n/devices/1":  "/n/trees/" + hex + "/metadata",
		"36 35 0:40 / /mnt ro - erofs /n/trees/" + hex + "/local/metadata ro":                                 "/n/trees/" + hex + "/local/metadata",
		"36 35 0:41 / / rw - overlay overlay rw,lowerdir=/n/mounts/" + hex + ":/n/snapshots/empty":            "/n/mounts/" + hex,
		`36 35 0:41 / / rw - overlay overlay rw,lowerdir=/n/snapshots/7/fs:/a\040b/mounts/` + hex + `,x=y`:    "/a b/mounts/" + hex,
		"36 35 0:41 / / rw - overlay overlay rw,lowerdir+=/n/snapshots/7/fs,lowerdir+=/n/mounts/" + hex:       "/n/mounts/" + hex,
		"36 35 0:40 / / ro - erofs /dev/vda2 ro":                                                              "",
		"36 35 0:40 / / ro - erofs /images/root/metadata ro":                                                  "",
		`36 35 0:41 / / rw - overlay overlay rw,lowerdir=/a"\134\040b/mounts/` + hex:                          `/a"\ b/mounts/` + hex,
		"36 35 0:41 / / rw shared:1 master:2 propagate_from:3 - overlay overlay rw,lowerdir=/n/mounts/" + hex: "/n/mounts/" + hex,
		`36 35 0:40 / /a\040b ro - erofs /n\134\011x/trees/` + hex + "/metadata ro":                           "/n\\\tx/trees/" + hex + "/metadata",
		"36 35 0:41 / / rw - overlay overlay rw,lowerdir=/var/lib/images/1/fs":                                "",
		"36 35 0:41 / /n/mounts/" + hex + " rw - tmpfs tmpfs rw":                                              "",
	} {
		mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(line), nil)
		if err != nil || len(mounts) != 1 {
			t.Fatalf("%s: %v", line, err)
		}
		if got := treeOf(mounts[0]); got != want {
			t.Errorf("%s\nshows %q, want %q", line, got, want)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if tree, err := LazyMount(self); err != nil || tree != "" {
		t.Errorf("this test is on tree %q, want none: %v", tree, err)
	}
	if _, err := LazyMount("/does/not/exist"); err == nil {
		t.Error("want an error for a file that does not exist")
	}
}
