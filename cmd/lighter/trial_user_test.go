package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// A trial runs as whom the image says, by its own lists, or not at all.
func TestUserOf(t *testing.T) {
	root, empty := t.TempDir(), t.TempDir()
	outside := filepath.Join(t.TempDir(), "passwd")
	for path, text := range map[string]string{
		filepath.Join(root, "etc/passwd"): "root:x:0:0:root:/root:/bin/sh\napp:x:100:200::/home/app:/bin/sh\nlarge:x:99999999999:1::/:/bin/sh\n",
		filepath.Join(root, "etc/group"):  "root:x:0:\napp:x:200:\nstaff:x:50:app,other\naudio:x:29:app\n",
		outside:                           "app:x:0:0::/:/bin/sh\nguest:x:0:0::/:/bin/sh\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		"": "0 0 []", "root": "0 0 []", "0": "0 0 []", "app": "100 200 [50 29]", "100": "100 200 [50 29]", "5": "5 0 []", "5:6": "5 6 []",
		"app:staff": "100 50 []", "app:7": "100 7 []", "nobody": "error nobody", "app:none": "error none", "5:none": "error none",
		"-1": "error", "99999999999": "error", "large": "error",
		"268435455": "268435455 0 []", "268435456": "error",
	} {
		u, err := userOf(root, text)
		got := fmt.Sprint(u.UID, u.GID, u.AdditionalGids)
		if named, failed := strings.CutPrefix(want, "error"); failed {
			if err == nil || !strings.Contains(err.Error(), strings.TrimSpace(named)) {
				t.Errorf("%q is %s, %v", text, got, err)
			}
		} else if err != nil || got != want {
			t.Errorf("%q is %s, %v, want %s", text, got, err, want)
		}
	}
	// An image without lists has numbers alone; one whose lists are links has what they
	// lead to in the image.
	if u, err := userOf(empty, "5:6"); err != nil || u.UID != 5 || u.GID != 6 {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err := userOf(empty, "app"); err == nil {
		t.Errorf("a name, without lists: %+v", u)
	}
	link := filepath.Join(empty, "etc/passwd")
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{outside, "../../../../../../../.." + outside} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
		if u, err := userOf(empty, "guest"); err == nil {
			t.Errorf("by a link out of the image: %+v", u)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	// What is no file is not even opened: of a device that would do something.
	for name, make := range map[string]func() error{
		"a pipe":   func() error { return syscall.Mkfifo(link, 0o644) },
		"a socket": func() error { return syscall.Mknod(link, syscall.S_IFSOCK|0o644, 0) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if u, err := userOf(empty, "app"); err == nil || !strings.Contains(err.Error(), "no file") {
			t.Errorf("by %s: %+v, %v", name, u, err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
}

// Who is not root gets no rights of root.
func TestSandboxOfAUser(t *testing.T) {
	for uid, want := range map[uint32]bool{0: true, 5: false} {
		box := sandbox{user: specs.User{UID: uid}}
		s := box.spec()
		if c := s.Process.Capabilities; len(c.Effective) > 0 != want || len(c.Permitted) > 0 != want || len(c.Bounding) == 0 || len(c.Ambient)+len(c.Inheritable) > 0 {
			t.Errorf("user %d has %+v", uid, c)
		}
	}
}
