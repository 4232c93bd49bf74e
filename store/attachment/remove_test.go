package attachment_test

import (
	"crypto/ed25519"
	"net/http"
	"strings"
	"testing"

	"lighter/registries/push"
	"lighter/store/attachment"
	"lighter/test/testkit/registrytest"
)

// A registry that lets nobody change the list of what refers to an image, or delete the index,
// makes the removal fail. Where the list was changed, nobody finds the index any more.
func TestRemoveIsRefused(t *testing.T) {
	for _, c := range []struct {
		referrers bool
		method    string // is refused
		status    int
		want      string // in the error; empty: the index is removed
	}{
		{true, http.MethodDelete, http.StatusMethodNotAllowed, push.ErrNoDeletion.Error()},
		{true, http.MethodDelete, http.StatusForbidden, "403"},
		{false, http.MethodPut, http.StatusMethodNotAllowed, "change the list"}, // read-only
		{false, http.MethodPut, http.StatusForbidden, "change the list"},
		{false, http.MethodPut, http.StatusNotFound, "change the list"}, // some registries deny so
		{false, http.MethodDelete, http.StatusMethodNotAllowed, ""},
	} {
		r := registrytest.Start(t, c.referrers)
		ref, _ := r.Push(t, image(t), "team/image:1")
		im := find(t, ref)
		attach(t, im, attachment.Place{}, attachment.Options{Keys: []ed25519.PrivateKey{keyOf(1)}}, "attached")
		r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
			if req.Method == c.method {
				w.WriteHeader(c.status)
			}
			return req.Method == c.method
		})
		_, err := attachment.RemoveAll(t.Context(), im, attachment.Place{}, nil)
		all, _, listErr := attachment.List(t.Context(), im, attachment.Place{})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) ||
			listErr != nil || (len(all) == 0) != (c.want == "") {
			t.Errorf("%+v: %v; then %d indexes are attached, %v", c, err, len(all), listErr)
		}
	}
}

// All indexes are removed, also if there are more than are looked at at a time.
func TestManyAreRemoved(t *testing.T) {
	for _, referrers := range []bool{true, false} {
		r := registrytest.Start(t, referrers)
		ref, _ := r.Push(t, image(t), "team/image:1")
		im := find(t, ref)
		const many = 18
		for i := range byte(many) {
			attach(t, im, attachment.Place{}, attachment.Options{Keys: []ed25519.PrivateKey{keyOf(i)}}, "attached")
		}
		removed, err := attachment.RemoveAll(t.Context(), im, attachment.Place{}, nil)
		if err != nil || len(removed) != many {
			t.Errorf("removed %d, %v, want %d", len(removed), err, many)
		}
		if left, _, err := attachment.List(t.Context(), im, attachment.Place{}); err != nil || len(left) > 0 {
			t.Errorf("%d are left, %v", len(left), err)
		}
	}
}
