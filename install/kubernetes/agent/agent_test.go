package agent

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/install/kubernetes"
	"lighter/node/control"
	"lighter/node/report"
	"lighter/test/testkit/socketdir"
)

// cluster is an API server with one node. It answers only the requests of the agent, and fails the
// test at every other one.
type cluster struct {
	t         *testing.T
	mu        sync.Mutex
	version   int // of the node
	conflicts int // how many changes of taints are refused, as if others had changed the node
	away      int // how many requests fail
	labels    map[string]string
	annotated map[string]string // annotations
	taints    []map[string]string
	condition map[string]map[string]any
	events    []map[string]any
	lists     int
	listed    func(lists int) // is called at each list of nodes
}

func newCluster(t *testing.T) (*cluster, *API) {
	t.Helper()
	c := &cluster{t: t, labels: map[string]string{"kubernetes.io/os": "linux"},
		annotated: map[string]string{}, condition: map[string]map[string]any{
			"Ready": {"type": "Ready", "status": "True", "lastHeartbeatTime": nil}}}
	server := httptest.NewTLSServer(c)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, text := range map[string]string{"ca.crt": string(ca), "token": "secret\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	api, err := NewAPI(server.URL, dir)
	if err != nil {
		t.Fatal(err)
	}
	return c, api
}

func (c *cluster) node() map[string]any {
	conditions := []any{}
	for _, value := range c.condition {
		conditions = append(conditions, value)
	}
	return map[string]any{"metadata": map[string]any{"name": "worker-1", "uid": "u-1", "labels": c.labels,
		"resourceVersion": fmt.Sprint(c.version)}, "spec": map[string]any{"taints": c.taints},
		"status": map[string]any{"conditions": conditions}}
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("Accept") != "application/json" {
		c.t.Errorf("%s %s: headers %v", r.Method, r.URL, r.Header)
	}
	if c.away > 0 {
		c.away--
		http.Error(w, `{"message":"etcd is away"}`, http.StatusServiceUnavailable)
		return
	}
	var body struct {
		Metadata struct {
			ResourceVersion string
			Labels          map[string]*string
			Annotations     map[string]*string
		}
		Spec   *struct{ Taints []map[string]string }
		Status struct{ Conditions []map[string]any }
		all    map[string]any
	}
	text, err := io.ReadAll(r.Body)
	if err == nil && len(text) > 0 {
		if err = json.Unmarshal(text, &body); err == nil {
			err = json.Unmarshal(text, &body.all)
		}
	}
	if err != nil {
		c.t.Errorf("%s %s: %v: %s", r.Method, r.URL, err, text)
	}
	answer := map[string]any{}
	switch r.Method + " " + r.URL.String() + " " + r.Header.Get("Content-Type") {
	case "GET /api/v1/nodes/worker-1 ":
		answer = c.node()
	case "GET /api/v1/nodes?labelSelector=lighter%2Finstalled ":
		items := []any{}
		if c.lists++; c.listed != nil {
			c.listed(c.lists)
		}
		if c.labels[InstalledLabel] != "" {
			items = append(items, c.node())
		}
		answer["items"] = items
	case "PATCH /api/v1/nodes/worker-1 application/merge-patch+json":
		if body.Spec != nil {
			if c.conflicts > 0 || body.Metadata.ResourceVersion != fmt.Sprint(c.version) {
				c.conflicts--
				http.Error(w, `{"message":"the object has been modified"}`, http.StatusConflict)
				return
			}
			c.taints = body.Spec.Taints
		}
		for key, value := range body.Metadata.Labels {
			if delete(c.labels, key); value != nil {
				c.labels[key] = *value
			}
		}
		for key, value := range body.Metadata.Annotations {
			if delete(c.annotated, key); value != nil {
				c.annotated[key] = *value
			}
		}
		c.version++
	case "PATCH /api/v1/nodes/worker-1/status application/strategic-merge-patch+json":
		for _, condition := range body.Status.Conditions {
			name := condition["type"].(string)
			if delete(c.condition, name); condition["$patch"] != "delete" {
				c.condition[name] = condition
			}
		}
		c.version++
	case "POST /api/v1/namespaces/default/events application/json":
		if message := body.all["message"].(string); len(message) > 1024 {
			c.t.Errorf("an event has a message of %d bytes", len(message))
		}
		c.events = append(c.events, body.all)
		w.WriteHeader(http.StatusCreated)
	default:
		c.t.Errorf("unexpected request: %s %s %s", r.Method, r.URL, r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusForbidden)
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		c.t.Error(err)
	}
}

// state is what an operator sees: label, condition and the reasons of all events.
func (c *cluster) state() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var reasons []string
	for _, e := range c.events {
		object := e["involvedObject"].(map[string]any)
		if object["kind"] != "Node" || object["name"] != "worker-1" || object["uid"] != "u-1" {
			c.t.Errorf("an event is about %v", object)
		}
		reasons = append(reasons, fmt.Sprint(e["type"], " ", e["reason"]))
	}
	condition := c.condition[ConditionType]
	return fmt.Sprintf("ready=%s installed=%s %v/%v %d taints %v", c.labels[ReadyLabel], c.labels[InstalledLabel],
		condition["status"], condition["reason"], len(c.taints), reasons)
}

// await waits until the cluster is in a state.
func (c *cluster) await(want string) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got := c.state()
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("got %s\nwant %s", got, want)
		}
	}
}

// machine returns results, and remembers what was asked.
type machine struct {
	mu                             sync.Mutex
	install, again, withdraw, hand kubernetes.Result
	calls                          []string
}

func (m *machine) call(name string, r *kubernetes.Result) kubernetes.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, name)
	return *r
}

func (m *machine) Hand(context.Context) kubernetes.Result { return m.call("hand", &m.hand) }
func (m *machine) Install(_ context.Context, again bool) kubernetes.Result {
	if again {
		r := m.call("again", &m.again)
		m.set(&m.again, kubernetes.Result{Root: r.Root, Error: r.Error}) // nothing is lost any more
		return r
	}
	return m.call("install", &m.install)
}
func (m *machine) Withdraw(_ context.Context, own string) kubernetes.Result {
	return m.call("withdraw "+own, &m.withdraw)
}

// count returns the number of calls of one kind.
func (m *machine) count(call string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls {
		if c == call {
			n++
		}
	}
	return n
}

// set changes a result while the agent runs.
func (m *machine) set(r *kubernetes.Result, to kubernetes.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*r = to
}

// lighterNode is a node of Lighter with a state.
type lighterNode struct{ status report.Status }

func (l *lighterNode) Status(context.Context) (report.Status, error) { return l.status, nil }
func (l *lighterNode) Images(context.Context, string) ([]report.ImageDetail, error) {
	return nil, nil
}

// serve serves a node of Lighter until stop is called.
func serve(t *testing.T, root string, l *lighterNode) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", control.Socket(root))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- (&control.Server{Reporter: l}).Serve(ctx, listener) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// start runs an agent until the test ends, or stop is called.
func start(t *testing.T, a *Agent, do func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- do(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the agent: got %v, want no error", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func newAgent(t *testing.T) (*cluster, *Agent, *machine) {
	t.Helper()
	c, api := newCluster(t)
	root := socketdir.New(t)
	m := &machine{install: kubernetes.Result{Distribution: "k3s", Root: "/", Done: []string{"create /x"}}}
	return c, &Agent{API: api, Node: "worker-1", Host: root, Machine: m, Taint: DefaultTaint, Pod: "p-1",
		Log: slog.New(slog.DiscardHandler), Every: 10 * time.Millisecond}, m
}

// readyz returns the status of /readyz.
func readyz(a *Agent) int {
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	return w.Code
}

// The node gets its label and condition, and loses the start-up taint and no other, when Lighter's
// node serves. When that stops, the label goes; when it serves again, the label comes back.
func TestInstall(t *testing.T) {
	c, a, m := newAgent(t)
	c.taints = []map[string]string{{"key": DefaultTaint, "effect": "NoSchedule"}, {"key": "gpu", "effect": "NoExecute",
		"value": "x", "timeAdded": "2026-01-01T00:00:00Z"}, {"key": DefaultTaint, "effect": "NoExecute"}}
	c.conflicts, c.away = 2, 1
	stop := start(t, a, a.Run)
	c.await("ready= installed=true False/NotServing 3 taints [Normal Installed]")
	if readyz(a) != http.StatusServiceUnavailable {
		t.Error("the pod is ready before the node serves")
	}
	down := serve(t, a.Host, &lighterNode{report.Status{Version: "v1"}})
	c.await("ready=true installed=true True/Ready 1 taints [Normal Installed]")
	if c.taints[0]["key"] != "gpu" || c.taints[0]["timeAdded"] == "" || readyz(a) != http.StatusOK {
		t.Errorf("got taints %v, readyz %d; want the other taint as it was, and 200", c.taints, readyz(a))
	}
	down()
	c.await("ready= installed=true False/NotServing 1 taints [Normal Installed]")
	down = serve(t, a.Host, &lighterNode{report.Status{Version: "v1", NotLazy: "the kernel has no EROFS"}})
	c.await("ready= installed=true False/NotLazy 1 taints [Normal Installed]")
	down()
	stop()
	notAgain := func(call string) bool { return call != "again" }
	if got := c.state(); slices.IndexFunc(m.calls[1:], notAgain) >= 0 || !strings.Contains(got, "installed=true") {
		t.Errorf("after the end of the pod: calls %v, %s; want that nothing was removed", m.calls, got)
	}
	// The next pod finds Lighter installed.
	m.install.Done = nil
	down = serve(t, a.Host, &lighterNode{report.Status{Version: "v1"}})
	defer down()
	start(t, a, a.Run)
	c.await("ready=true installed=true True/Ready 1 taints [Normal Installed]")
}

// What the machine has lost is installed again: soon if the node does not answer, and some time
// later if it does.
func TestLost(t *testing.T) {
	c, a, m := newAgent(t)
	m.again = kubernetes.Result{Distribution: "k3s", Root: "/", Done: []string{"create /unit"}}
	stop := start(t, a, a.Run)
	c.await("ready= installed=true False/NotServing 0 taints [Normal Installed Normal Installed]")
	stop()
	down := serve(t, a.Host, &lighterNode{report.Status{Version: "v1"}})
	defer down()
	start(t, a, a.Run)
	c.await("ready=true installed=true True/Ready 0 taints [Normal Installed Normal Installed Normal Installed]")
	m.set(&m.again, kubernetes.Result{Error: "the configuration is broken"})
	c.await("ready= installed=true False/InstallationFailed 0 taints " +
		"[Normal Installed Normal Installed Normal Installed Warning InstallationFailed]")
	if readyz(a) != http.StatusServiceUnavailable {
		t.Error("the pod is ready although a part of the installation is lost")
	}
}

// What the machine has lost is installed again without the API server, too: its own image may be
// lazy, and need the node.
func TestLostWithoutAPI(t *testing.T) {
	c, a, m := newAgent(t)
	down := serve(t, a.Host, &lighterNode{report.Status{Version: "v1"}})
	start(t, a, a.Run)
	c.await("ready=true installed=true True/Ready 0 taints [Normal Installed]")
	c.mu.Lock()
	c.away = 1 << 30
	c.mu.Unlock()
	before := m.count("again")
	down()
	for end := time.Now().Add(time.Minute); m.count("again") < before+2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what is lost was not installed within a minute")
		}
	}
}

// A failure is reported once, with its reason, and the taint stays.
func TestFailure(t *testing.T) {
	defer func(old time.Duration) { retry.First = old }(retry.First)
	retry.First = time.Millisecond
	c, a, m := newAgent(t)
	c.taints = []map[string]string{{"key": DefaultTaint}}
	m.install = kubernetes.Result{Error: strings.Repeat("no containerd ", 100)}
	stop := start(t, a, a.Run)
	for {
		m.mu.Lock()
		n := len(m.calls)
		m.mu.Unlock()
		if n > 3 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	c.await("ready= installed=true False/InstallationFailed 1 taints [Warning InstallationFailed]")
	m.set(&m.install, kubernetes.Result{Error: "containerd does not start", RolledBack: true})
	c.await("ready= installed=true False/RolledBack 1 taints [Warning InstallationFailed Warning RolledBack]")
	stop()
}

// A removal leaves containers that use Lighter alone and names them. The machine does the rest when
// only this pod is left.
func TestRemove(t *testing.T) {
	c, a, m := newAgent(t)
	c.labels[ReadyLabel], c.labels[InstalledLabel] = "true", "true"
	m.withdraw = kubernetes.Result{Users: []string{"pod a/b", "pod c/d"}}
	start(t, a, a.Remove)
	c.await("ready= installed=true False/InUse 0 taints [Warning InUse]")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.listed = func(lists int) {
		if lists == 2 {
			cancel()
		}
	}
	err := Await(ctx, a.API, time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "worker-1: pod a/b, pod c/d use") {
		t.Errorf("await: got %v, want the node and its pods", err)
	}
	m.set(&m.withdraw, kubernetes.Result{})
	c.await("ready= installed= <nil>/<nil> 0 taints [Warning InUse Normal Uninstalled]")
	if err := Await(t.Context(), a.API, time.Millisecond); err != nil {
		t.Error(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls[0] != "withdraw p-1" || slices.Index(m.calls, "hand") != len(m.calls)-1 || len(m.calls) < 3 {
		t.Errorf("got the calls %v, want withdrawals, and then the hand-over", m.calls)
	}
}
