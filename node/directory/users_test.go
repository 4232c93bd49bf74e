package directory

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func mappedKey(user, n int) key {
	chain := fmt.Sprintf("%d of %d", n, user)
	return key{fmt.Sprintf("%s%d-%016x/1", mappedPrefix, user, n), target{chain: chain}}
}

// One user cannot fill the directory with user namespaces.
func TestUserNamespacesAreBounded(t *testing.T) {
	m, fronts := newFronts(t)
	d := fronts[1]
	for n := range maxShare {
		d.put(mappedKey(1000, n), 1000)
	}
	for n := range 3 {
		d.addIdle(t, mappedKey(1000, maxShare+n))
	}
	if len(d.images) != maxShare {
		t.Errorf("a user has %d images, want %d", len(d.images), maxShare)
	}
	old := key{mappedPrefix + "0123456789abcdef/1", target{chain: "of an earlier version"}}
	for _, k := range []key{mappedKey(0, 1), mappedKey(1001, 1), chainKey(1), old} {
		d.addIdle(t, k)
	}
	if len(d.images) != maxShare+4 {
		t.Errorf("got %d images, want those of other users in addition", len(d.images))
	}
	for k := range d.images {
		m.used[m.Tree(k.chain)] = true
	}
	if _, err := d.admit(mappedKey(1000, maxShare+3), 1000); err == nil || !strings.Contains(err.Error(), "user 1000") {
		t.Errorf("got %v, want an error that names the user", err)
	}
	for n := range maxShare {
		d.put(mappedKey(0, n+2), 0)
	}
	d.addIdle(t, mappedKey(0, 0)) // root has no bound of its own
}

// One user cannot fill the directory with images in use. Those that the user does not use any more
// stay on the disk, and do not count.
func TestImagesOfAUserAreBounded(t *testing.T) {
	m, fronts := newFronts(t)
	d := fronts[0]
	for n := range maxShare {
		d.put(chainKey(n), 1000)
		m.used[m.Tree(fmt.Sprint(n))] = true
	}
	full := chainKey(maxShare)
	if _, err := d.admit(full, 1000); err == nil || !strings.Contains(err.Error(), "user 1000") {
		t.Errorf("got %v, want an error that names the user", err)
	}
	if _, err := d.admit(mappedKey(1000, 1), 1000); err == nil {
		t.Error("a user has a share for each kind of images, want one share")
	}
	d.addIdleFor(t, full, 1001)
	if _, err := d.admit(full, 1000); err != nil {
		t.Errorf("an image that another user has in use: %v", err)
	}
	clear(m.used)
	for n := range 10 {
		d.addIdleFor(t, chainKey(maxShare+1+n), 1000)
	}
	if want := maxShare + 11; len(d.images) != want {
		t.Errorf("got %d images, want %d: unused ones stay on the disk", len(d.images), want)
	}
}

// A process in the node's user namespace counts for its own user, and a process that has ended for
// none.
func TestUserOfARequest(t *testing.T) {
	for thread, known := range map[uint32]bool{0: true, uint32(os.Getpid()): true, 1 << 30: false} {
		if user, err := (requester{thread: thread, uid: 1000}).user(); known != (err == nil && user == 1000) {
			t.Errorf("thread %d: got user %d, %v", thread, user, err)
		}
	}
}

// A user whose images are all in use is refused at once, so that no other user waits for the same
// mount and is refused with this one.
func TestRefusalConcernsOneUser(t *testing.T) {
	m, fronts := newFronts(t)
	d := fronts[0]
	for n := range maxShare {
		d.put(chainKey(n), 1000)
		m.used[m.Tree(fmt.Sprint(n))] = true
	}
	k := chainKey(maxShare)
	d.pending[k] = &pending{user: 1000}
	_, err := d.mountTree(t.Context(), k)
	if d.settle(k, err); err == nil || len(d.failed) > 0 {
		t.Errorf("got %v, and %d failures that concern all users; want an error for one", err, len(d.failed))
	}
	for _, i := range d.images {
		i.used = time.Now() // as after an attempt to unmount what is in use
	}
	if _, p, err := d.begin(k, requester{uid: 1000}); err == nil || p != nil {
		t.Errorf("got %v, %v; want an error at once", p, err)
	}
	if _, err := d.admit(k, 1001); err != nil {
		t.Errorf("another user: %v", err)
	}
}
