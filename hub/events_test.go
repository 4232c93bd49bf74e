package hub_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"lighter/hub"
	"lighter/hub/events"
	"lighter/wire"
)

// A target gets an event for each image that becomes ready, fails or is removed. Everybody may read
// the status and the badge of an image, and watch images.
func TestEvents(t *testing.T) {
	t.Parallel()
	got, watched := make(chan string, 100), make(chan string, 100)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var event struct{ Data wire.Event }
		if err := json.NewDecoder(req.Body).Decode(&event); err != nil {
			t.Error(err)
		}
		got <- event.Data.Kind + " " + event.Data.Name
	}))
	defer target.Close()
	h := startHub(t, func(c *hub.Config) {
		c.Events = []events.Target{{Name: "ci", URL: target.URL, Private: true}}
	})
	go func() {
		_ = h.client.WatchImages(t.Context(), "", func(e wire.Event) error {
			watched <- e.Kind + " " + e.Name
			return nil
		})
	}()
	h.pushReady("team/app:1", image(lowerTar))
	expectBadge := func(name, state string) {
		t.Helper()
		status, text, header := h.do("GET", wire.BadgePath(wire.DefaultDomain, name), nil)
		if status != http.StatusOK || header.Get("Content-Type") != "image/svg+xml" ||
			!strings.Contains(string(text), ">"+state+"<") {
			t.Errorf("the badge of %s: %d %s, want %s", name, status, text, state)
		}
	}
	expectBadge("team/app:1", wire.StatusReady)
	expectBadge("team/other:1", wire.StatusUnknown)
	h.push("team/bad:1", image([]byte("no tar")))
	h.settled("team/bad:1")
	expectBadge("team/bad:1", wire.StatusFailed)
	var s wire.Status
	_, text, _ := h.do("GET", wire.StatusPath(wire.DefaultDomain, "team/bad:1"), nil)
	if err := json.Unmarshal(text, &s); err != nil || s.State != wire.StatusFailed || len(s.Images) != 1 ||
		s.Images[0].Reason == "" || time.Since(s.Images[0].Since) > time.Hour {
		t.Errorf("the status of a failed image is %s (%v)", text, err)
	}
	if err := h.client.Remove(t.Context(), "team/app:1"); err != nil {
		t.Fatal(err)
	}
	want := []string{"failed team/bad:1", "ready team/app:1", "removed team/app:1"}
	for _, channel := range []chan string{got, watched} {
		missing := slices.Clone(want)
		for len(missing) > 0 {
			change := <-channel
			missing = slices.DeleteFunc(missing, func(w string) bool { return w == change })
			if channel == got && !slices.Contains(want, change) {
				t.Errorf("the target got %s", change)
			}
		}
	}
}
