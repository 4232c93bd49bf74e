package mount

import (
	"os"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// treeOf finds the tree in a line of the mount table: the metadata image of an EROFS mount, or the
// mounted tree among the lower layers of an overlay.
func TestMountsThatShowATree(t *testing.T) {
	id := strings.NewReplacer("TREE", strings.Repeat("0a", 32))
	for line, want := range map[string]string{
		"1 2 0:3 / /n/mounts/TREE ro - erofs /n/trees/TREE/metadata ro,device=/n/d/1": "/n/trees/TREE/metadata",
		"1 2 0:3 / /mnt ro - erofs /n/trees/TREE/local/metadata ro":                   "/n/trees/TREE/local/metadata",
		`1 2 0:3 / /a\040b ro - erofs /n\134\011x/trees/TREE/metadata ro`:             "/n\\\tx/trees/TREE/metadata",
		"1 2 0:3 / / ro - erofs /dev/vda2 ro":                                         "",
		"1 2 0:3 / / ro - erofs /images/root/metadata ro":                             "",

		"1 2 0:3 / / rw - overlay overlay rw,lowerdir=/n/mounts/TREE:/n/snapshots/empty":         "/n/mounts/TREE",
		`1 2 0:3 / / rw - overlay overlay rw,lowerdir=/n/snapshots/7/fs:/a\040b/mounts/TREE,x=y`: "/a b/mounts/TREE",
		"1 2 0:3 / / rw - overlay overlay rw,lowerdir+=/n/snapshots/7,lowerdir+=/n/mounts/TREE":  "/n/mounts/TREE",
		`1 2 0:3 / / rw - overlay overlay rw,lowerdir=/a"\134\040b/mounts/TREE`:                  `/a"\ b/mounts/TREE`,
		"1 2 0:3 / / rw shared:1 master:2 - overlay overlay rw,lowerdir=/n/mounts/TREE":          "/n/mounts/TREE",
		"1 2 0:3 / / rw - overlay overlay rw,lowerdir=/var/lib/images/1/fs":                      "",

		"1 2 0:3 / /n/mounts/TREE rw - tmpfs tmpfs rw": "",
	} {
		line, want = id.Replace(line), id.Replace(want)
		mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(line), nil)
		if err != nil || len(mounts) != 1 {
			t.Fatalf("parse %s: got %d mounts, %v; want 1", line, len(mounts), err)
		}
		if got := treeOf(mounts[0]); got != want {
			t.Errorf("%s\ngot tree %q, want %q", line, got, want)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if tree, err := LazyMount(self); err != nil || tree != "" {
		t.Errorf("the program of this test: got tree %q, %v; want none", tree, err)
	}
	if _, err := LazyMount("/does/not/exist"); err == nil {
		t.Error("a file that does not exist: got no error")
	}
}
