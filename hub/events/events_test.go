package events

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/test/testkit/catalogtest"
	"lighter/wire"
)

const secret = "0123456789abcdef"

// received is a request that a target has got.
type received struct {
	header http.Header
	body   []byte
}

// receiver is a target that keeps what it gets, and answers as answer says.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex // guards the following
	all    []received
	answer func(w http.ResponseWriter)
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{answer: func(http.ResponseWriter) {}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, received{req.Header, body})
		r.answer(w)
	}))
	t.Cleanup(r.Close)
	return r
}

// take returns what was received since the last call.
func (r *receiver) take() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}

func (r *receiver) answers(status int, header ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = func(w http.ResponseWriter) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
	}
}

// newService returns a service with targets over a new catalog.
func newService(t *testing.T, targets ...Target) *Service {
	t.Helper()
	c := catalogtest.Open(t, filepath.Join(t.TempDir(), "catalog.db"))
	log := slog.New(slog.DiscardHandler)
	s, err := New(t.Context(), Config{Domain: "default", Targets: targets, Catalog: c,
		Jobs: jobs.NewRunner().Queue(c.Jobs, "test", log), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// deliver does what the hub does each second.
func (s *Service) deliverDue(t *testing.T) {
	t.Helper()
	if err := s.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, to := range s.senders {
		if err := s.deliverAll(t.Context(), to); err != nil {
			t.Fatal(err)
		}
	}
}

func secretFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A receiver that knows the secret can verify the body and its time, as the documents say.
func checkSignature(t *testing.T, r received) {
	t.Helper()
	stamp, rest, _ := strings.Cut(strings.TrimPrefix(r.header.Get(wire.SignatureHeader), "t="), ",v1=")
	sum := hmac.New(sha256.New, []byte(secret))
	sum.Write([]byte(stamp + "." + string(r.body)))
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if got, hexErr := hex.DecodeString(rest); err != nil || hexErr != nil || !hmac.Equal(got, sum.Sum(nil)) {
		t.Errorf("the signature %q is wrong", r.header.Get(wire.SignatureHeader))
	}
	if age := time.Since(time.Unix(seconds, 0)); age < -time.Second || age > time.Hour {
		t.Errorf("the signature is %v old", age)
	}
}

// Events are CloudEvents, in the body or in headers, and signed.
func TestCloudEvents(t *testing.T) {
	t.Parallel()
	structured, binary := newReceiver(t), newReceiver(t)
	s := newService(t,
		Target{Name: "structured", URL: structured.URL, SecretFile: secretFile(t), Private: true},
		Target{Name: "binary", URL: binary.URL, SecretFile: secretFile(t), Private: true, Binary: true,
			Kinds: []string{"ready"}, Repositories: []string{"team/**"}})
	catalogtest.Publish(t, s.config.Catalog, "team/app:1", "a")
	catalogtest.Publish(t, s.config.Catalog, "other/app:1", "a")
	s.deliverDue(t)
	s.deliverDue(t) // nothing is left
	all, some := structured.take(), binary.take()
	if len(all) != 2 || len(some) != 1 {
		t.Fatalf("%d and %d events were received, want 2 and 1", len(all), len(some))
	}
	var got struct {
		SpecVersion, ID, Source, Type, Subject, DataContentType string
		Time                                                    time.Time
		Data                                                    wire.Event
	}
	if err := json.Unmarshal(all[0].body, &got); err != nil {
		t.Fatal(err)
	}
	if got.Subject != "team/app:1" {
		if err := json.Unmarshal(all[1].body, &got); err != nil {
			t.Fatal(err)
		}
	}
	if got.SpecVersion != "1.0" || got.Type != "lighter.image.ready" || !strings.HasSuffix(got.Source, "/default") ||
		got.ID != got.Data.ID || got.ID == "" || got.Data.Kind != "ready" || got.Data.Name != got.Subject ||
		got.Time.IsZero() {
		t.Errorf("the event is %+v", got)
	}
	if kind := all[0].header.Get("Content-Type"); !strings.HasPrefix(kind, "application/cloudevents+json") {
		t.Errorf("the structured event is of type %q", kind)
	}
	var data wire.Event
	if err := json.Unmarshal(some[0].body, &data); err != nil || data != got.Data {
		t.Errorf("the binary event's data is %+v (%v), want %+v", data, err, got.Data)
	}
	for name, want := range map[string]string{"Ce-Id": got.ID, "Ce-Type": got.Type, "Ce-Source": got.Source,
		"Ce-Subject": got.Subject, "Ce-Specversion": "1.0", "Content-Type": "application/json"} {
		if is := some[0].header.Get(name); is != want {
			t.Errorf("header %s is %q, want %q", name, is, want)
		}
	}
	checkSignature(t, all[0])
	checkSignature(t, some[0])
}

// A target that is down rests, and gets each event later. An event that it refuses keeps no other
// event waiting. After a day an event is dead, and may be sent again.
func TestRetries(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	s := newService(t, Target{Name: "x", URL: r.URL, Private: true})
	for _, name := range []string{"a:1", "b:1", "c:1"} {
		catalogtest.Publish(t, s.config.Catalog, name, "a")
	}
	r.answers(http.StatusServiceUnavailable, "Retry-After", "3600")
	s.deliverDue(t)
	if n := len(r.take()); n < 1 || n > atOnce {
		t.Errorf("a target that is down got %d events, want one at a time of each sender at most", n)
	}
	s.deliverDue(t)
	if n := len(r.take()); n != 0 {
		t.Errorf("a target that rests got %d events", n)
	}
	list, err := s.List(t.Context(), false)
	if err != nil || len(list.Deliveries) != 3 {
		t.Fatalf("%d deliveries wait (%v), want 3", len(list.Deliveries), err)
	}
	for _, d := range list.Deliveries {
		if d.Failure != "the target has answered 503 Service Unavailable" || time.Until(d.Due) < 50*time.Minute {
			t.Errorf("the delivery %+v does not wait as long as the target asks", d)
		}
	}
	if err := s.events.Rest(t.Context(), "x", "", 0); err != nil {
		t.Fatal(err)
	}
	// Time passes.
	due := func() []catalog.Delivery {
		t.Helper()
		all, err := s.events.Deliveries(t.Context(), false, 10)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	old := due()
	for i := range old {
		old[i].Age = lasting
	}
	r.answers(http.StatusBadRequest)
	if rests, err := s.deliver(t.Context(), s.senders[0], old[0]); rests || err != nil {
		t.Errorf("a refused event makes its target rest: %t, %v", rests, err)
	}
	dead, err := s.List(t.Context(), true)
	if err != nil || len(dead.Deliveries) != 1 || dead.Deliveries[0].Dead.IsZero() || len(due()) != 2 {
		t.Fatalf("dead deliveries: %+v, %v, want one", dead, err)
	}
	r.answers(http.StatusNoContent)
	for _, d := range old[1:] {
		if _, err := s.deliver(t.Context(), s.senders[0], d); err != nil {
			t.Fatal(err)
		}
	}
	r.take()
	if _, err := s.Retry(t.Context(), dead.Deliveries[0].ID); err != nil {
		t.Fatal(err)
	}
	s.deliverDue(t)
	if got := r.take(); len(got) != 1 || got[0].header.Get(wire.EventIDHeader) != dead.Deliveries[0].ID {
		t.Errorf("after the retry, the target got %d events, want the dead one with its ID", len(got))
	}
	counts, err := s.Counts(t.Context())
	if want := (Counts{Delivered: 3, Failed: counts["x"].Failed}); err != nil || counts["x"] != want {
		t.Errorf("counts %+v, %v, want %+v", counts["x"], err, want)
	}
}

// The hub connects to no address that is not public, unless the target is private, and follows no
// redirect. Errors do not show the URL.
func TestTargetsAtPrivateAddresses(t *testing.T) {
	t.Parallel()
	inner := newReceiver(t)
	outer := newReceiver(t)
	outer.answers(http.StatusTemporaryRedirect, "Location", inner.URL)
	s := newService(t, Target{Name: "inner", URL: inner.URL + "/?token=hidden"},
		Target{Name: "outer", URL: outer.URL, Private: true})
	catalogtest.Publish(t, s.config.Catalog, "a:1", "a")
	s.deliverDue(t)
	if got := inner.take(); len(got) != 0 {
		t.Errorf("a private address got %d events", len(got))
	}
	list, err := s.List(t.Context(), false)
	if err != nil || len(list.Deliveries) != 2 {
		t.Fatalf("%d deliveries (%v), want 2", len(list.Deliveries), err)
	}
	for _, d := range list.Deliveries {
		want := map[string]string{"inner": "not a public address: set private",
			"outer": "307 Temporary Redirect"}[d.Target]
		if !strings.Contains(d.Failure, want) || strings.Contains(d.Failure, "hidden") {
			t.Errorf("the failure of target %s is %q, want one with %q and without the URL", d.Target, d.Failure, want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "120": 2 * time.Minute, "-1": 0, "x": 0, "99999999": maxRest, "99999999999999": 0,
		now.Add(time.Minute).Format(http.TimeFormat): time.Minute, now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("Retry-After %q: %v, want %v", text, got, want)
		}
	}
}

func TestInvalidTargets(t *testing.T) {
	t.Parallel()
	for want, targets := range map[string][]Target{
		"": {{Name: "a", URL: "https://x.example.org/hook?t=1"},
			{Name: "b", URL: "http://127.0.0.1:1"}},
		`event 1: name ""`:                   {{URL: "https://x.example.org"}},
		`event "a" is configured twice`:      {{Name: "a", URL: "https://x"}, {Name: "a", URL: "https://y"}},
		`event "a": url: want https://`:      {{Name: "a", URL: "ftp://x"}},
		`without a user`:                     {{Name: "a", URL: "https://u:p@x"}},
		`plain HTTP shows`:                   {{Name: "a", URL: "http://x.example.org"}},
		`kinds: "queued": want ready, faile`: {{Name: "a", URL: "https://x", Kinds: []string{"queued"}}},
		`repositories: "[" is no pattern`:    {{Name: "a", URL: "https://x", Repositories: []string{"["}}},
		`want 32 at most`:                    make([]Target, maxTargets+1),
	} {
		err := Check(targets)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: got %v, want %q", targets, err, want)
		}
	}
}

// A watch gets all images first, and then each change once.
func TestWatch(t *testing.T) {
	t.Parallel()
	s := newService(t)
	catalogtest.Publish(t, s.config.Catalog, "a:1", "a")
	var lines []string
	note := func(e wire.Event) error {
		lines = append(lines, e.Kind+" "+e.Name)
		return nil
	}
	seen, err := s.events.Latest(t.Context(), maxOverlap)
	if err != nil {
		t.Fatal(err)
	}
	follow := func(want string) {
		t.Helper()
		lines = nil
		if seen, err = s.follow(t.Context(), "", seen, note); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(lines, ", "); got != want {
			t.Errorf("changes: %s; want: %s", got, want)
		}
	}
	follow("")
	catalogtest.Publish(t, s.config.Catalog, "b:1", "a")
	follow("queued b:1, active b:1, ready b:1")
	follow("")
	for range maxWatches {
		s.watches <- struct{}{}
	}
	if err := s.Watch(t.Context(), "", note); err == nil {
		t.Error("one watch more than the bound is accepted")
	}
}
