package directory

import (
	"fmt"
	"strings"
	"testing"
)

// One user cannot fill the directory with user namespaces.
func TestUserNamespacesAreBounded(t *testing.T) {
	m, fronts := newFronts(t)
	d := fronts[1]
	mapped := func(user, n int) key {
		chain := fmt.Sprintf("%d of %d", n, user)
		return key{fmt.Sprintf("%s%d-%016x/1", mappedPrefix, user, n), target{chain: chain}}
	}
	for n := range maxMapped + 3 {
		d.addIdle(t, mapped(1000, n))
	}
	if len(d.images) != maxMapped {
		t.Errorf("a user has %d images, want %d", len(d.images), maxMapped)
	}
	old := key{mappedPrefix + "0123456789abcdef/1", target{chain: "of an earlier version"}}
	for _, k := range []key{mapped(0, 1), mapped(1001, 1), chainKey(1), old} {
		d.addIdle(t, k)
	}
	if len(d.images) != maxMapped+4 {
		t.Errorf("got %d images, want those of other users in addition", len(d.images))
	}
	for k := range d.images {
		m.used[m.Tree(k.chain)] = true
	}
	if _, err := d.admit(mapped(1000, maxMapped+3)); err == nil || !strings.Contains(err.Error(), "of user 1000") {
		t.Errorf("got %v, want an error that names the user", err)
	}
	for n := range maxMapped + 1 {
		d.addIdle(t, mapped(0, n+2)) // root has no bound of its own
	}
}
