package origin

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/wire/client"
)

var someTrace = trace.Trace{Tree: chunk.ID{1}, Reads: []trace.Read{{At: time.Millisecond, Offset: 4096, Length: 8192}}}

// A trace goes to the first origin that accepts it. The refusals of mirrors, and of hubs that do
// not know the tree, do not count against them.
func TestSendTrace(t *testing.T) {
	var got []string
	takes := func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		got = append(got, req.Method+" "+req.URL.Path+" "+string(body))
		w.WriteHeader(http.StatusNoContent)
	}
	want := "POST /lighter/1/default/traces/" + someTrace.Tree.String() + ` {"reads":[[1,4096,8192]]}`
	for _, mirror := range []int{404, 405, 403, 501, 429} {
		got = nil
		s := origins(t, status(mirror), takes, takes)
		if err := s.SendTrace(t.Context(), someTrace.Tree, someTrace); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("behind a %d: got %q, %v; want %q", mirror, got, err, want)
		}
		for _, h := range s.Health() {
			if !h.Up || h.Failures > 0 {
				t.Errorf("behind a %d: got %+v, want origins that are up, without failures", mirror, h)
			}
		}
	}
	for _, final := range []int{400, 413} {
		got = nil
		var said *client.Error
		err := origins(t, status(final), takes).SendTrace(t.Context(), someTrace.Tree, someTrace)
		if !errors.As(err, &said) || said.Status != final || got != nil {
			t.Errorf("after a %d: got traces %q, %v; want no trace, and the answer as the error", final, got, err)
		}
	}
	refused := new(client.Error)
	err := origins(t, status(404)).SendTrace(t.Context(), someTrace.Tree, someTrace)
	if !errors.As(err, &refused) || !refused.IsRefusal() {
		t.Errorf("no origin accepts it: got %v, want a refusal", err)
	}
	// The failure of a hub that may accept it later takes precedence over the refusal of a mirror.
	for _, later := range []int{429, 503} {
		err := origins(t, status(later), status(405)).SendTrace(t.Context(), someTrace.Tree, someTrace)
		if said := new(client.Error); !errors.As(err, &said) || said.IsRefusal() {
			t.Errorf("a hub answers %d and a mirror refuses: got %v, want the hub's error", later, err)
		}
	}
	s := origins(t, takes, status(405))
	s.all[0].fail(errors.New("it is down"))
	if err := s.SendTrace(t.Context(), someTrace.Tree, someTrace); err == nil || errors.As(err, new(*client.Error)) {
		t.Errorf("a hub is down and a mirror refuses: got %v, want that the hub is down", err)
	}
}
