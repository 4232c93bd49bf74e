//go:build e2e

package hub_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"lighter/hub/events"
	"lighter/test/testkit/distribution"
	"lighter/test/testkit/port"
	"lighter/test/testkit/postgres"
	"lighter/wire"
)

// eventTarget is a receiver of a hub's events, which are signed with hookSecret. got has each event
// once: a hub sends an event again if it cannot note that it was received.
func eventTarget(t *testing.T) (url string, got chan wire.Event) {
	t.Helper()
	got = make(chan wire.Event, 100)
	var known sync.Map // of IDs
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var event struct{ Data wire.Event }
		if err == nil {
			err = json.Unmarshal(body, &event)
		}
		stamp, signature, _ := strings.Cut(strings.TrimPrefix(req.Header.Get(wire.SignatureHeader), "t="), ",v1=")
		sum := hmac.New(sha256.New, []byte(hookSecret))
		fmt.Fprintf(sum, "%s.%s", stamp, body)
		if given, hexErr := hex.DecodeString(signature); err != nil || hexErr != nil ||
			!hmac.Equal(given, sum.Sum(nil)) {
			t.Errorf("an event with signature %q: %s, %v", req.Header.Get(wire.SignatureHeader), body, err)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if _, again := known.LoadOrStore(event.Data.ID, true); !again {
			got <- event.Data
		}
	}))
	t.Cleanup(target.Close)
	return target.URL, got
}

// A push to a real registry, which notifies the hub, becomes a ready image by itself, and the hub
// sends a signed event. While the hub's database is away, the hub acknowledges no event; the
// registry sends it again, so an image that was pushed meanwhile becomes ready, too.
func TestPushToANotifyingRegistry(t *testing.T) {
	t.Parallel()
	registry, err := port.Loopback()
	if err != nil {
		t.Fatal(err)
	}
	database := postgres.Start(t)
	c := hubConfig(t)
	c.Catalog = database.Database(t)
	withHook(t, "distribution", registry)(&c)
	to, got := eventTarget(t)
	c.Events = []events.Target{{Name: "ci", URL: to, SecretFile: c.Hooks[0].SecretFile, Private: true}}
	h := startProcess(t, c)
	distribution.StartAt(t, registry, "", fmt.Sprintf("notifications: {endpoints: [{name: hub, url: %q, timeout: 5s, "+
		"threshold: 1, backoff: 100ms, headers: {Authorization: [%q]}}]}\n",
		h.url+wire.HooksPrefix+"ci", "Bearer "+hookSecret))
	push := func(tag string) string {
		t.Helper()
		ref, err := name.ParseReference(registry + "/team/app:" + tag)
		if err != nil {
			t.Fatal(err)
		}
		image, err := random.Image(100_000, 2)
		if err == nil {
			err = remote.Write(ref, image)
		}
		if err != nil {
			t.Fatal(err)
		}
		d, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	ready := func(tag, digest string) {
		t.Helper()
		want := registry + "/team/app:" + tag
		select {
		case e := <-got:
			if e.Kind != wire.StateReady || e.Name != want || e.Digest != digest {
				t.Errorf("event %+v, want that %s@%s is ready", e, want, digest)
			}
		case <-time.After(time.Minute):
			t.Fatalf("after a minute, no event says that %s@%s is ready", want, digest)
		}
		if !h.isReady(want, digest) {
			t.Errorf("%s is not ready", want)
		}
	}
	ready("1", push("1"))

	database.Kill()
	body := `{"events": [{"action": "push", "target": {"repository": "team/app", "tag": "2", "mediaType": ` +
		`"application/vnd.oci.image.manifest.v1+json"}}]}`
	if status, header := h.tell(body); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("without the database: %d, %v; want 503 with Retry-After", status, header)
	}
	digest := push("2")
	if err := database.Run(); err != nil {
		t.Fatal(err)
	}
	ready("2", digest)
}

// An event that was acknowledged is not lost when the hub is killed before it has looked.
func TestHookWithAKilledHub(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar))
	r.status.Store(http.StatusServiceUnavailable) // so that the image cannot become ready before the kill
	c := hubConfig(t)
	withHook(t, "plain", r.host())(&c)
	h := startProcess(t, c)
	if status, _ := h.tell(`{"repository": "some/image", "tag": "1"}`); status != http.StatusAccepted {
		t.Fatalf("status %d, want 202", status)
	}
	h.kill()
	r.status.Store(0)
	again := startProcess(t, c)
	again.eventually("the image is not ready", func() bool { return again.isReady(r.name(), r.digest()) })
}
