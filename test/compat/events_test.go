package compat

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/hub"
	"lighter/hub/events"
	"lighter/hub/hooks"
	"lighter/test/testkit/example"
	"lighter/wire"
)

// hookSecret is the secret of the hook ci.
const hookSecret = "0123456789abcdef"

// startNotified runs a hub with a hook named ci, and a target of events. got has the bodies of
// events.
func startNotified(t *testing.T) (url string, got chan []byte) {
	t.Helper()
	got = make(chan []byte, 10)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		got <- body
	}))
	t.Cleanup(target.Close)
	secret := filepath.Join(t.TempDir(), "secret")
	noError(t, os.WriteFile(secret, []byte(hookSecret+"\n"), 0o600))
	url, _ = startHub(t, hubRoot(t), func(c *hub.Config) {
		c.Hooks = []hooks.Hook{{Name: "ci", Kind: "plain", Registry: "registry.example.org", SecretFile: secret,
			Repositories: []string{"registry.example.org/team/**"}}}
		c.Events = []events.Target{{Name: "ci", URL: target.URL, Private: true}}
	})
	return url, got
}

// TestStatusHooksAndEvents sends the requests of pipelines and badges, as an earlier version had
// them, to a hub of today. Then it removes the image: the target gets the event that it knows.
func TestStatusHooksAndEvents(t *testing.T) {
	hub, got := startNotified(t)
	var all []exchange
	decode(t, example.Stored(t, "notices-1.json", func() []byte {
		event := []byte(`{"repository": "other/app", "tag": "1"}`)
		for _, x := range []exchange{
			{Method: http.MethodGet, Path: wire.StatusPath(wire.DefaultDomain, imageName)},
			{Method: http.MethodGet, Path: wire.StatusPath(wire.DefaultDomain, "team/none:1")},
			{Method: http.MethodGet, Path: wire.BadgePath(wire.DefaultDomain, imageName)},
			{Method: http.MethodGet, Path: wire.EventsPath(wire.DefaultDomain)},
			{Method: http.MethodPost, Path: wire.HooksPrefix + "ci", Body: event,
				Header: header{Authorization: "Bearer " + hookSecret}},
			{Method: http.MethodPost, Path: wire.HooksPrefix + "ci", Body: event,
				Header: header{Authorization: "Bearer wrong"}},
			{Method: http.MethodPost, Path: wire.HooksPrefix + "ci", Body: []byte(`{}`),
				Header: header{Authorization: "Bearer " + hookSecret}},
			{Method: http.MethodPost, Path: wire.HooksPrefix + "none", Body: []byte(`{}`)},
		} {
			all = append(all, x.send(t, hub))
		}
		return encode(t, all)
	}), &all)
	for _, x := range all {
		x.check(t, hub)
	}
	noError(t, newClient(t, hub).Remove(t.Context(), imageName))
	sent := <-got
	before := parse(t, string(example.Stored(t, "event-1.json", func() []byte { return sent })))
	now := parse(t, string(sent))
	for _, event := range []any{before, now} { // each event has others
		whole, _ := event.(map[string]any)
		data, _ := whole["data"].(map[string]any)
		for _, key := range []string{"id", "time"} {
			if whole[key] == "" || whole[key] == nil || data[key] != whole[key] {
				t.Errorf("event %v: want %s in it, and in its data", event, key)
			}
			delete(whole, key)
			delete(data, key)
		}
		source, _ := whole["source"].(string) // has a name that the hub has made for itself
		if !strings.HasPrefix(source, "lighter://") || !strings.HasSuffix(source, "/"+wire.DefaultDomain) {
			t.Errorf("event %v: got the source %q", event, source)
		}
		delete(whole, "source")
	}
	hasAll(t, "event", now, before)
}
