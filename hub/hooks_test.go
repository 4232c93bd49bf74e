package hub_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"lighter/hub"
	"lighter/hub/hooks"
	"lighter/wire"
)

// hookSecret is the secret of the tests' hooks.
const hookSecret = unlogged + "-0123456789abcdef"

// withHook gives a hub a hook named ci, for the images of a registry.
func withHook(t *testing.T, kind, registry string) func(*hub.Config) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(hookSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(c *hub.Config) {
		c.Hooks = []hooks.Hook{{Name: "ci", Kind: kind, Registry: registry, SecretFile: file}}
	}
}

// tell sends an event to the hook ci and returns the status of the answer.
func (h *testHub) tell(body string) (status int, header http.Header) {
	h.t.Helper()
	status, _, header = h.do("POST", wire.HooksPrefix+"ci", []byte(body), "Authorization", "Bearer "+hookSecret)
	return status, header
}

// Ten thousand events about one image cost a few looks. The hub sends no request to a machine that
// only an event names.
func TestHookAsksOnlyItsRegistry(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer inner.Close()
	host := strings.TrimPrefix(inner.URL, "http://")
	r := startRegistry(t, image(lowerTar))
	h := startHub(t, withHook(t, "distribution", r.host()))

	type target map[string]any
	push := func(repository, url string) map[string]any {
		return map[string]any{"action": "push", "request": target{"host": host},
			"target": target{"repository": repository, "tag": "1", "url": url,
				"mediaType": "application/vnd.oci.image.manifest.v1+json"}}
	}
	events := []any{push(host+"/some/image", inner.URL+"/v2/some/image/manifests/1"),
		push(inner.URL+"/some/image", inner.URL), push("../"+host+"/some/image", inner.URL)}
	for len(events) < 1000 {
		events = append(events, push("some/image", inner.URL+"/v2/some/image/manifests/1"))
	}
	body, err := json.Marshal(map[string]any{"events": events})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if status, _ := h.tell(string(body)); status != http.StatusAccepted {
			t.Fatalf("status %d, want 202", status)
		}
	}
	h.eventually("the image is not ready", func() bool { return h.isReady(r.name(), r.digest()) })
	h.awaitMetric(fmt.Sprintf(`lighter_hub_hook_hints{domain=%q,hook="ci"} 0`, wire.DefaultDomain))
	h.looked()
	gets, heads := r.counts()
	if n := gets["1"] + heads; n > 30 {
		t.Errorf("10,000 events about one image caused %d requests for its manifest, want 30 at most", n)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("a machine that only events name got %d requests, want none", n)
	}
}
