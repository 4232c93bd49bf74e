package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// With --wait=false, lighter add ends when the hub has begun. With --wait, it ends when the hub
// says that the image is ready.
func TestAddWaits(t *testing.T) {
	var isReady atomic.Bool
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintln(w, `{"step": "copy", "item": "a", "bytes": 1, "total": 2}`)
		w.(http.Flusher).Flush()
		if !isReady.Load() {
			<-req.Context().Done() // until the command ends
		}
		fmt.Fprintln(w, `{"done": true, "images": [{"name": "a:1", "state": "ready"}]}`)
	}))
	defer hub.Close()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for _, flag := range []string{"--wait=false", "--wait"} {
		isReady.Store(flag == "--wait")
		code, out, errs := lighter(t, "add", "--hub", hub.URL, flag, "docker://registry.test/a:1")
		if code != 0 || strings.Contains(out, "ready") != isReady.Load() {
			t.Errorf("%s: exit code %d, %q, %q", flag, code, out, errs)
		}
	}
}
