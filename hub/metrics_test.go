package hub_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"lighter/hub"
	"lighter/hub/events"
	"lighter/hub/hooks"
	"lighter/wire"
)

// Unknown paths and domains do not add values to the label "endpoint" of the metrics.
func TestMetrics(t *testing.T) {
	to, _ := newMirror(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := startHub(t, exportsTo(to), func(c *hub.Config) {
		c.Events = []events.Target{{Name: "ci", URL: "http://127.0.0.1:1", Kinds: []string{wire.StateFailed}}}
		c.Hooks = []hooks.Hook{{Name: "h", Kind: "plain", Registry: "registry.example.org", SecretFile: secret}}
	})
	h.pushReady("tools/shell:1", image(lowerTar))
	for _, path := range []string{"/lighter/1/default/key", "/lighter/1/default/packs/none/1",
		"/lighter/1/default/secret", "/x", "/lighter/1/other/key"} {
		h.do("GET", path, nil)
	}
	var body []byte
	for _, want := range []string{`lighter_hub_requests_total{code="200",endpoint="key"} 1`,
		`lighter_hub_requests_total{code="400",endpoint="packs"} 1`,
		`lighter_hub_requests_total{code="404",endpoint="other"} 2`,
		`lighter_hub_requests_total{code="404",endpoint="key"} 1`,
		`lighter_hub_request_duration_seconds_count{endpoint="registry"}`,
		`lighter_hub_images{domain="default",state="ready"} 1`,
		`lighter_hub_images{domain="default",state="failed"} 0`, "go_build_info", "lighter_build_info{"} {
		for try := 0; !strings.Contains(string(body), want); try++ { // a request is counted after it was answered
			if try > 500 {
				t.Fatalf("no %s in:\n%s", want, body)
			}
			time.Sleep(10 * time.Millisecond)
			_, body, _ = h.do("GET", "/metrics", nil)
		}
	}
	documented(t, string(body))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(h.Collectors()...)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v, want no problems", problems, err)
	}
}

// Each route is counted under the endpoint of its first path element, and docs/metrics.md names all
// endpoints.
func TestEachRouteHasAnEndpoint(t *testing.T) {
	h := startHub(t)
	got := []string{hub.EndpointOf("/v2/a/manifests/1"), hub.EndpointOf(wire.HooksPrefix + "a"), hub.EndpointOf("/x")}
	for _, path := range h.Paths() {
		endpoint := hub.EndpointOf(path)
		if endpoint == "other" {
			t.Errorf("requests to %s are counted under the endpoint other, want one of their own", path)
		}
		got = append(got, endpoint)
	}
	slices.Sort(got)
	got = slices.Compact(got)
	if want := slices.Sorted(slices.Values(hub.Endpoints)); !slices.Equal(got, want) {
		t.Errorf("the routes have the endpoints %v, want %v", got, want)
	}
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := "`" + strings.Join(hub.Endpoints, "`, `") + "`"; !strings.Contains(string(text), want) {
		t.Errorf("docs/metrics.md does not name the endpoints %s", want)
	}
}

// documented checks that docs/metrics.md has all of the hub's metrics and no others.
func documented(t *testing.T, exposed string) {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names := func(pattern, text string) (names []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1]+" "+m[2])
		}
		slices.Sort(names)
		return names
	}
	want := names("(?m)^\\| `("+hub.MetricPrefix+"\\w+)` \\| (\\w+)", string(text))
	if got := names("(?m)^# TYPE ("+hub.MetricPrefix+"\\w+) (\\w+)", exposed); !slices.Equal(got, want) ||
		len(got) < 3 {
		t.Errorf("the hub has the metrics %v, want those of docs/metrics.md, %v", got, want)
	}
}

func TestHealthAndReadiness(t *testing.T) {
	h := startHub(t)
	for path, want := range map[string]string{
		"/healthz": "ok\n", "/readyz": "ok\ndatabase: ok\nbucket: ok\ndisk: ok\n",
	} {
		if status, body, _ := h.do("GET", path, nil); status != 200 || string(body) != want {
			t.Errorf("%s: %d %q, want 200 %q", path, status, body, want)
		}
	}
	h.SetStopping()
	if status, body, _ := h.do("GET", "/readyz", nil); status != 503 ||
		!strings.Contains(string(body), "shutting down") {
		t.Errorf("while the hub shuts down: %d %q, want 503", status, body)
	}
	if status, _, _ := h.do("GET", "/healthz", nil); status != 200 {
		t.Errorf("/healthz while the hub shuts down: %d, want 200", status)
	}
}
