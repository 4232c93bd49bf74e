package hooks

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/report"
	"lighter/test/testkit/catalogtest"
	"lighter/wire"
)

const (
	secret = "0123456789abcdef"
	host   = "registry.example.org"
)

// testHooks is a server with an inbox.
type testHooks struct {
	*Server
	*Inbox

	mu     sync.Mutex // guards the following
	looks  []string
	during func() // is called during a look
}

func newTestHooks(t testing.TB, hooks ...Hook) *testHooks {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range hooks {
		hooks[i].SecretFile = file
		if hooks[i].Registry == "" {
			hooks[i].Registry = host
		}
	}
	if err := Check(hooks); err != nil {
		t.Fatal(err)
	}
	c, err := catalog.Open(t.Context(), catalog.Place{Source: filepath.Join(t.TempDir(), "catalog.db")})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	h := &testHooks{}
	h.Inbox = NewInbox(Config{Hooks: hooks, Catalog: c, Jobs: jobs.NewRunner().Queue(c.Jobs, "test", log), Log: log,
		Look: h.look})
	if h.Server, err = NewServer(hooks, answer.NewBodies(), func(string) *Inbox { return h.Inbox }, log); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = h.Run(ctx)
	}()
	t.Cleanup(func() {
		end()
		<-ended
		_ = c.Close()
	})
	return h
}

func (h *testHooks) look(_ context.Context, wishes []Wish) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range wishes {
		if strings.Contains(w.Source, "invalid") {
			return report.ErrInvalid
		}
		h.looks = append(h.looks, fmt.Sprintf("%s %s %t", w.Hook, w.Source, w.MayRemove))
	}
	if h.during != nil {
		h.during()
		h.during = nil
	}
	return nil
}

// send sends an event and returns the status.
func (h *testHooks) send(name, body string, header ...string) int {
	req := httptest.NewRequest("POST", wire.HooksPrefix+name, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Code
}

// looked runs the hook's job, and returns the looks.
func (h *testHooks) looked(t *testing.T) []string {
	t.Helper()
	h.mu.Lock()
	h.looks = nil
	h.mu.Unlock()
	for i := range h.config.Hooks {
		if err := h.lookAll(t.Context(), &h.config.Hooks[i]); err != nil {
			t.Fatal(err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.Sort(h.looks)
	return h.looks
}

func example(t *testing.T, file string) string {
	t.Helper()
	body, err := os.ReadFile("testdata/" + file + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func signature(body string) string {
	sum := hmac.New(sha256.New, []byte(secret))
	sum.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(sum.Sum(nil))
}

// Each sender's secret is accepted where that sender has it, and nowhere else. Only the configured
// registry is looked at, whatever an event names.
func TestSecrets(t *testing.T) {
	t.Parallel()
	h := newTestHooks(t, Hook{Name: "harbor", Kind: "harbor", MayDelete: true},
		Hook{Name: "dist", Kind: "distribution"},
		Hook{Name: "gitlab", Kind: "gitlab"}, Hook{Name: "hub", Kind: "dockerhub", Registry: "docker.io"},
		Hook{Name: "signed", Kind: "plain", SignatureHeader: "X-Hub-Signature-256", SignaturePrefix: "sha256="},
		Hook{Name: "some", Kind: "plain", Repositories: []string{host + "/team/**"}})
	plain := `{"repository": "team/app", "tag": "9"}`
	for _, c := range []struct {
		name, body string
		header     []string
		want       int
	}{
		{"harbor", example(t, "harbor-push"), []string{"Authorization", secret}, 202},
		{"harbor", example(t, "harbor-delete"), []string{"Authorization", "Bearer " + secret}, 202},
		{"harbor", example(t, "harbor-test"), []string{"Authorization", secret}, 202},
		{"harbor", example(t, "harbor-push"), nil, 401},
		{"harbor", example(t, "harbor-push"), []string{"Authorization", secret + "x"}, 401},
		{"harbor", example(t, "harbor-push"), []string{"X-Gitlab-Token", secret}, 401},
		{"harbor", "{}", []string{"Authorization", secret}, 400},
		{"harbor", strings.Repeat(" ", maxBody+1), []string{"Authorization", secret}, 413},
		{"dist", example(t, "distribution-1"), []string{"Authorization", "Bearer " + secret}, 202},
		{"gitlab", example(t, "gitlab-pipeline"), []string{"X-Gitlab-Token", secret}, 202},
		{"gitlab", example(t, "gitlab-pipeline"), []string{"X-Gitlab-Token", "wrong"}, 401},
		{"hub?token=" + secret, example(t, "dockerhub"), nil, 202},
		{"hub?token=wrong", example(t, "dockerhub"), nil, 401},
		{"hub", example(t, "dockerhub"), []string{"Authorization", secret}, 401},
		{"signed", plain, []string{"X-Hub-Signature-256", signature(plain)}, 202},
		{"signed", plain + " ", []string{"X-Hub-Signature-256", signature(plain)}, 401},
		{"signed", plain, []string{"X-Hub-Signature-256", strings.TrimPrefix(signature(plain), "sha256=")}, 401},
		{"signed", plain, []string{"Authorization", secret}, 401},
		{"some", `{"repository": "other/app", "tag": "1"}`, []string{"Authorization", secret}, 202},
		{"some", `{"repository": "10.0.0.1:5000/team/app", "tag": "1"}`, []string{"Authorization", secret}, 202},
		{"some", `{"repository": "../team/app", "tag": "1"}`, []string{"Authorization", secret}, 202},
		{"some", `{"repository": "team/app", "tag": "1@x/y"}`, []string{"Authorization", secret}, 202},
		{"some", "[" + strings.Repeat(plain+",", maxEvents) + plain + "]", []string{"Authorization", secret}, 400},
		{"none", plain, []string{"Authorization", secret}, 404},
	} {
		if got := h.send(c.name, c.body, c.header...); got != c.want {
			t.Errorf("%s, header %q, body %.60q: status %d, want %d", c.name, c.header, c.body, got, c.want)
		}
	}
	want := []string{"dist docker://" + host + "/library/test:latest false",
		"harbor docker://" + host + "/team/app:latest true", "harbor docker://" + host + "/team/app:v1.0 true",
		"hub docker://docker.io/svendowideit/testhook:latest false", "signed docker://" + host + "/team/app:9 false"}
	if got := h.looked(t); !slices.Equal(got, want) {
		t.Errorf("the hub looks at\n%q\nwant\n%q", got, want)
	}
	counts := map[string]int64{}
	h.Server.Count(func(hook, result string, n int64) { counts[hook+" "+result] = n })
	if counts["harbor accepted"] != 2 || counts["harbor ignored"] != 1 || counts["harbor refused"] != 3 ||
		counts["harbor invalid"] != 2 {
		t.Errorf("requests of a hook: %v", counts)
	}
}

// Ten thousand events about one image cost one look. An event that comes during the look costs
// another one.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	h := newTestHooks(t, Hook{Name: "h", Kind: "plain"})
	send := func() {
		if got := h.send("h", `{"repository": "a/b", "tag": "1"}`, "Authorization", secret); got != 202 {
			t.Errorf("status %d, want 202", got)
		}
	}
	var senders sync.WaitGroup
	for range 100 {
		senders.Go(func() {
			for range 100 {
				send()
			}
		})
	}
	senders.Wait()
	look := "h docker://" + host + "/a/b:1 false"
	h.during = func() {
		h.mu.Unlock()
		send()
		h.mu.Lock()
	}
	if got := h.looked(t); !slices.Equal(got, []string{look, look}) {
		t.Errorf("the hub looks at %q, want one look, and one more for the event that came meanwhile", got)
	}
	if got := h.looked(t); len(got) != 0 {
		t.Errorf("the hub looks once more at %q", got)
	}
}

// A digest, or a project without a tag, stands for the names that the hub has. An invalid event
// does not keep others waiting.
func TestNamesOfDigests(t *testing.T) {
	t.Parallel()
	h := newTestHooks(t, Hook{Name: "h", Kind: "plain", Platforms: []string{"linux/arm64"}})
	for _, name := range []string{host + "/a/b:1", host + "/a/b:2", host + "/a/bc:1"} {
		catalogtest.Publish(t, h.config.Catalog, name, "a")
	}
	for body, want := range map[string][]string{
		`{"repository": "a/b"}`:                              {"h docker://" + host + "/a/b:1 false", "h docker://" + host + "/a/b:2 false"},
		`{"repository": "a/b", "digest": "` + digestA + `"}`: nil,
		`[{"repository": "invalid", "tag": "1"}, {"repository": "c", "tag": "1"}]`: {
			"h docker://" + host + "/c:1 false"},
	} {
		if got := h.send("h", body, "Authorization", secret); got != 202 {
			t.Errorf("%s: status %d", body, got)
		}
		if got := h.looked(t); !slices.Equal(got, want) {
			t.Errorf("%s: the hub looks at %q, want %q", body, got, want)
		}
	}
}

// While the catalog is away, or has too many hints, no event is acknowledged.
func TestUnstoredEvents(t *testing.T) {
	t.Parallel()
	h := newTestHooks(t, Hook{Name: "h", Kind: "plain"})
	h.full.Store("h", true)
	if got := h.send("h", `{"repository": "a", "tag": "1"}`, "Authorization", secret); got != 429 {
		t.Errorf("with too many hints: status %d, want 429", got)
	}
	if err := h.queue(t.Context()); err != nil { // there is room again
		t.Fatal(err)
	}
	if err := h.config.Catalog.Close(); err != nil {
		t.Fatal(err)
	}
	if got := h.send("h", `{"repository": "a", "tag": "1"}`, "Authorization", secret); got != 503 {
		t.Errorf("without the catalog: status %d, want 503", got)
	}
}

func TestInvalidHooks(t *testing.T) {
	t.Parallel()
	ok := Hook{Name: "a", Kind: "harbor", Registry: host, SecretFile: "f"}
	change := func(f func(*Hook)) Hook {
		h := ok
		f(&h)
		return h
	}
	for want, h := range map[string]Hook{
		"":                     ok,
		`name "A"`:             change(func(h *Hook) { h.Name = "A" }),
		`kind "quay"`:          change(func(h *Hook) { h.Kind = "quay" }),
		`registry ""`:          change(func(h *Hook) { h.Registry = "" }),
		`registry "harbor"`:    change(func(h *Hook) { h.Registry = "harbor" }),
		`registry "https://x"`: change(func(h *Hook) { h.Registry = "https://x" }),
		`secret_file is empty`: change(func(h *Hook) { h.SecretFile = "" }),
		`signature_header`:     change(func(h *Hook) { h.SignatureHeader = "a b" }),
		`repositories`:         change(func(h *Hook) { h.Repositories = []string{"["} }),
		`platforms`:            change(func(h *Hook) { h.Platforms = []string{"amd64"} }),
	} {
		err := Check([]Hook{h})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", h, err, want)
		}
	}
	if err := Check([]Hook{ok, ok}); err == nil {
		t.Error("two hooks have one name")
	}
	if _, err := NewServer([]Hook{change(func(h *Hook) { h.SecretFile = "/nonexistent" })}, answer.NewBodies(), nil,
		slog.New(slog.DiscardHandler)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a hook without its secret: %v", err)
	}
}

// Events that arrive at 500 a second are answered after their commit. The benchmark reports the
// 99th percentile of the answers' times.
func BenchmarkAnswers(b *testing.B) {
	h := newTestHooks(b, Hook{Name: "h", Kind: "plain"})
	var mu sync.Mutex
	var times []time.Duration
	var senders sync.WaitGroup
	tick := time.NewTicker(time.Second / 500)
	defer tick.Stop()
	n := 0
	for b.Loop() {
		<-tick.C
		body := fmt.Sprintf(`{"repository": "a/b%d", "tag": "1"}`, n%40_000)
		n++
		senders.Go(func() {
			started := time.Now()
			if got := h.send("h", body, "Authorization", secret); got != http.StatusAccepted {
				b.Errorf("status %d", got)
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, time.Since(started))
		})
	}
	senders.Wait()
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
}
