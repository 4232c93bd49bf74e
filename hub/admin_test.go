package hub_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/format/trace"
	"lighter/wire/client"

	"lighter/hub"
)

// With admin_listen, changes are refused at listen, and accepted at admin_listen.
func TestAdminListen(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "admin.sock")
	for _, listen := range []string{hub.UnixPrefix + socket, "127.0.0.1:0"} {
		h := startHub(t, func(c *hub.Config) { c.AdminListen = listen })
		for path, want := range map[string]int{"POST /lighter/1/default/images": 403,
			"DELETE /lighter/1/default/images?name=a:1":      403,
			"POST /lighter/1/default/images/verify?name=a:1": 403,
			"POST /lighter/1/default/traces/import?name=a:1": 403,
			"DELETE /lighter/1/default/traces?name=a:1":      403, "POST /v2/a/blobs/uploads/": 403,
			"PUT /v2/a/manifests/1":         403,
			"GET /lighter/1/default/images": 200, "GET /v2/": 200, "HEAD /lighter/1/default/key": 200,
			"POST /lighter/1/default/traces/" + strings.Repeat("0", 64):        404,
			"POST /lighter/1/default/traces/" + strings.Repeat("0", 64) + "/x": 403} {
			method, path, _ := strings.Cut(path, " ")
			got, said, header := h.do(method, path, nil)
			if got != want {
				t.Errorf("%s %s: %d %s, want %d", method, path, got, said, want)
			}
			if !json.Valid(said) && method != "HEAD" || header.Get("Content-Type") != "application/json" && got == 403 {
				t.Errorf("%s %s: %q of type %s, want JSON", method, path, said, header.Get("Content-Type"))
			}
		}
		if h.config.AdminListen != hub.UnixPrefix+socket {
			continue
		}
		info, err := os.Stat(socket)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("the socket: %v, %v, want mode 0600", info, err)
		}
		admin, err := client.New(client.Options{URL: listen})
		if err != nil {
			t.Fatal(err)
		}
		if err := admin.Remove(t.Context(), "a:1"); err == nil || !strings.Contains(err.Error(), "not found") ||
			!admin.IsLoopback() || admin.URL() != listen {
			t.Errorf("remove a missing image at the socket %s: %v, want not found", admin.URL(), err)
		}
		host, plain, transport := admin.Registry()
		req, err := http.NewRequest("POST", "http://"+host+"/v2/a/blobs/uploads/", nil)
		if err != nil || !plain {
			t.Fatalf("the registry's client uses plain HTTP: %t, %v, want true", plain, err)
		}
		if res, err := transport.RoundTrip(req); err != nil || res.StatusCode != 202 {
			t.Errorf("a push at the socket: %v, %v, want 202", res, err)
		}
		if _, err := h.config.ListenAdmin(); err == nil || !strings.Contains(err.Error(), "another process listens") {
			t.Errorf("another hub at the same socket: %v, want an error", err)
		}
		h.stop()
		write(t, socket, nil)
		if _, err := h.config.ListenAdmin(); err == nil {
			t.Error("a file at the socket's path was replaced")
		}
	}
}

// Absurd traces of one machine do not replace the workloads of other machines, and further traces
// of that machine are refused. If the machine is behind a trusted proxy, the hub takes its address
// from the header of the proxy.
func TestSendersAreLimited(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	c.Proxies = []string{"10.0.0.0/24"}
	next := openHub(t, c)
	next.Starts().Timing.MergeDelay = 0
	h := runHub(t, next)
	m := h.extents(h.pushReady("a:1", image(startsTar(10))).Tree)
	all := filesOf(t, m)
	handler := next.PublicHandler()
	send := func(from, forwarded string, reads ...trace.Read) int {
		req := httptest.NewRequest("POST", "/lighter/1/default/traces/"+m.ID().String(),
			strings.NewReader(string(trace.Trace{Tree: m.ID(), Reads: reads}.Encode())))
		req.RemoteAddr = from + ":1234"
		if forwarded != "" {
			req.Header.Set("X-Forwarded-For", forwarded)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		h.await(m.ID())
		return w.Code
	}
	// Eight workloads, with one start each.
	for i := range 8 {
		if code := send(fmt.Sprintf("192.0.2.%d", i), "", all[i], all[i+1]); code != 204 {
			t.Fatalf("trace of machine %d: %d, want 204", i, code)
		}
	}
	known := func() int {
		shown, err := h.client.Starts(t.Context(), "a:1", "")
		if err != nil {
			t.Fatal(err)
		}
		return len(shown[0].Workloads)
	}
	if known() != 8 {
		t.Fatalf("%d workloads are known, want 8", known())
	}
	first, _ := h.client.Starts(t.Context(), "a:1", "")
	// Another machine, behind the proxy, reports a trace of a new workload each time.
	for i := range 12 {
		if code := send("10.0.0.1", "6.6.6.6, 198.51.100.7, 10.0.0.2", all[i%6], all[2+i%6+i/6]); code != 204 {
			t.Fatalf("trace %d of another machine: %d, want 204", i, code)
		}
	}
	shown, err := h.client.Starts(t.Context(), "a:1", "")
	if err != nil || len(shown[0].Workloads) != 16 {
		t.Fatalf("%d workloads are known, %v, want 16", len(shown[0].Workloads), err)
	}
	ids := fmt.Sprint(shown[0].Workloads)
	for _, w := range first[0].Workloads {
		if !strings.Contains(ids, w.ID) {
			t.Errorf("workload %+v of the first machines was replaced", w)
		}
	}
	// The traces of known workloads are limited, too: for a machine, for an untrusted proxy on the
	// hub's machine, and for an unknown client behind a trusted proxy.
	for _, from := range [][2]string{{"198.51.100.7", "1.2.3.4"}, {"127.0.0.1", "1.2.3.4"}, {"10.0.0.1", "::1"}} {
		code := 0
		for range 65 {
			if code = send(from[0], from[1], all[0], all[1]); code != 204 {
				break
			}
		}
		if code != 429 {
			t.Errorf("after 64 traces of %s for %s: %d, want 429", from[0], from[1], code)
		}
	}
	for _, from := range []string{"198.51.100.8", "127.0.0.1"} {
		if code := send(from, "", all[0], all[1]); code != 204 {
			t.Errorf("a trace of another machine, %s: %d, want 204", from, code)
		}
	}
	waiting, err := h.Catalog().Starts.Traces(t.Context(), m.ID())
	if err != nil || len(waiting) != 0 {
		t.Errorf("traces %+v wait, %v, want none", waiting, err)
	}
	// After the removal of all workloads, limited senders may report again.
	if _, err := h.client.ForgetTraces(t.Context(), "a:1", "", ""); err != nil {
		t.Fatal(err)
	}
	if code := send("198.51.100.7", "", all[0], all[1]); code != 204 || known() != 1 {
		t.Errorf("after the removal: %d, %d workloads are known, want 204 and 1", code, known())
	}
}
