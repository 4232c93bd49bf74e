package objects_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"lighter/hub/away"
	"lighter/hub/objects"
)

// If a bucket refuses to read one object, the error names it, and says that the bucket works. If
// the bucket refuses all requests, it does not work. Errors of writes are no errors of a read.
func TestErrorsOfReads(t *testing.T) {
	signed(t)
	var mu sync.Mutex // guards the following
	stored, all := map[string][]byte{}, false
	s, err := objects.Open(t.Context(), s3URL(t, func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch b, err := io.ReadAll(req.Body); {
		case err != nil:
			panic(http.ErrAbortHandler)
		case all || strings.HasPrefix(req.URL.Path, "/bucket/packs/"):
			w.WriteHeader(http.StatusForbidden)
		case req.Method == http.MethodPut:
			stored[req.URL.Path] = b
		case req.URL.Path == "/bucket":
			fmt.Fprint(w, "<ListBucketResult></ListBucketResult>")
		default:
			_, _ = w.Write(stored[req.URL.Path])
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, openErr := s.Open(t.Context(), "packs/a")
	_, sizeErr := s.Size(t.Context(), "packs/a")
	for what, err := range map[string]error{"open": openErr, "size": sizeErr} {
		read := away.OneRead(err)
		if read == nil || read.Object != "object packs/a" || !strings.Contains(read.Remedy, "lighter fsck") {
			t.Fatalf("%s: %v, want an error of the read of packs/a", what, err)
		}
		if err := read.Works(t.Context()); err != nil {
			t.Errorf("the bucket does not work: %v, want it to", err)
		}
	}
	err = s.Publish(t.Context(), []objects.Staged{{Key: "packs/a", Path: stagedFile(t, 10)}})
	if !away.Is(err) || away.OneRead(err) != nil {
		t.Errorf("publish: %v, want a marked error, and none of a read", err)
	}
	mu.Lock()
	all = true
	mu.Unlock()
	if err := away.OneRead(openErr).Works(t.Context()); err == nil {
		t.Error("the bucket works although it refuses all requests")
	}
}
