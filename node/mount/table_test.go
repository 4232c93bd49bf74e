package mount

import "testing"

func TestMountPointsSeesTheRoot(t *testing.T) {
	mounts, err := mountPoints("/")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := mounts["/proc"]; !ok {
		t.Errorf("no /proc among %d mounts", len(mounts))
	}
	if mounts["/proc"].number == "" {
		t.Error("/proc has no number")
	}
	if mounts, err := mountPoints("/proc/self/net"); err != nil || len(mounts) != 0 {
		t.Errorf("below a directory without mounts: %v, %v", mounts, err)
	}
	if _, err := mountPoints("/does/not/exist"); err == nil {
		t.Error("want an error for a root that does not exist")
	}
}
