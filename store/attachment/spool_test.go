package attachment_test

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"lighter/format/guess"
	"lighter/store/attachment"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/registrytest"
)

// The guess reads programs in another order than a layer has them, and the packs need their chunks
// again. Still no part of a layer is read twice.
func TestGuessReadsOnce(t *testing.T) {
	const pairs = 12
	dir, script := filepath.Join(t.TempDir(), "image"), ""
	err := layout.Extend(image(t), dir, func(l *layout.Layer) (err error) {
		err = l.Program("bin/sh", noise(100, 5000))
		for i := range byte(pairs) {
			err = errors.Join(err, l.File(fmt.Sprintf("between-%d", i), noise(i, 1<<20)),
				l.Program(fmt.Sprintf("first-%d", i), noise(101+i, 5000)),
				l.Program(fmt.Sprintf("second-%d", i), noise(151+i, 5000)))
			script += fmt.Sprintf("/first-%d\n", i)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r := registrytest.Start(t, true)
	ref, _ := r.Push(t, dir, "team/image:1")
	im := find(t, ref)
	im.Config = guess.Config{Cmd: []string{"/bin/sh", "-c", script + "/second-0\n/second-1\n"}}
	var mu sync.Mutex
	ranges := map[string]int{}
	r.Spoil(func(_ http.ResponseWriter, req *http.Request) bool {
		part := req.Header.Get("Range")
		if part != "" && strings.HasSuffix(req.URL.Path, im.Layers[2].Digest.String()) {
			mu.Lock()
			defer mu.Unlock()
			ranges[part]++
		}
		return false
	})
	o := attachment.Options{Keys: []ed25519.PrivateKey{keyOf(1)}, Guess: true}
	if made := attach(t, im, attachment.Place{}, o, "attached"); made.Startup < (pairs+3)*5000 {
		t.Errorf("the startup packs have %d bytes, want those of %d programs", made.Startup, pairs+3)
	}
	mu.Lock()
	for part, n := range ranges {
		if n > 1 {
			t.Errorf("%s was read %d times", part, n)
		}
	}
	if len(ranges) < pairs {
		t.Errorf("%d ranges were read, want %d at least: %v", len(ranges), pairs, ranges)
	}
	mu.Unlock()
	all, _, err := attachment.List(t.Context(), im, attachment.Place{})
	if err != nil || len(all) != 1 {
		t.Fatalf("attached are %+v, %v, want one", all, err)
	}
	check(t, im, all[0])
}
