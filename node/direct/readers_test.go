package direct

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/store"
	"lighter/test/testkit/cachetest"
)

// decodings are the ways in which readers' answers are decoded: while they arrive, or afterwards,
// if too many others arrive.
var decodings = map[string]func(a *store.Answer){
	"while it arrives": func(a *store.Answer) {
		if a.DecodeArriving != nil { // units of startup packs have none
			a.Decode = nil
		}
	},
	"after it has arrived": func(a *store.Answer) { a.DecodeArriving = nil },
}

// observed is the source of readers. It notes how often the answers of a unit were decoded.
type observed struct {
	*Source
	change func(a *store.Answer) // of each answer

	mu      sync.Mutex
	decoded map[chunk.Unit]int
}

func observe(m *Images, change func(a *store.Answer)) *observed {
	return &observed{Source: m.Source(noHubs{}), change: change, decoded: map[chunk.Unit]int{}}
}

// FetchUnit implements store.UnitSource.
func (o *observed) FetchUnit(ctx context.Context, u chunk.Unit, take func(store.Answer) error) error {
	return o.Source.FetchUnit(ctx, u, o.taking(u, take))
}

// Fetch implements store.Source.
func (o *observed) Fetch(ctx context.Context, ref chunk.Ref, take func(store.Answer) error) error {
	return o.Source.Fetch(ctx, ref, o.taking(ref.Unit, take))
}

func (o *observed) taking(u chunk.Unit, take func(store.Answer) error) func(store.Answer) error {
	return func(a store.Answer) error {
		o.change(&a)
		if decode := a.Decode; decode != nil {
			a.Decode = func(b []byte) (store.Batch, error) { o.note(u); return decode(b) }
		}
		if decode := a.DecodeArriving; decode != nil {
			a.DecodeArriving = func(b []byte, arrived func(int) (int, error)) (store.Batch, error) {
				o.note(u)
				return decode(b, arrived)
			}
		}
		return take(a)
	}
}

func (o *observed) note(u chunk.Unit) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.decoded[u]++
}

// decodings returns how often the answers of a unit were decoded.
func (o *observed) decodings(u chunk.Unit) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.decoded[u]
}

// readThrough reads all chunks of a tree, as its device does. Derived chunks have no digest: they
// are what the registry's good bytes are decoded to.
func readThrough(t *testing.T, source store.Source, cache store.Cache, refs []chunk.Ref) map[chunk.Ref][]byte {
	t.Helper()
	fetcher := store.NewFetcher(source, cache)
	defer fetcher.Wait()
	share := fetcher.Share()
	good := map[chunk.Ref][]byte{}
	for _, ref := range refs {
		plain := make([]byte, ref.Length)
		if !share.Cached(ref, 0, plain) {
			if err := share.Read(t.Context(), ref, 0, plain, nil); err != nil {
				t.Fatal(err)
			}
		}
		good[ref] = plain
	}
	return good
}

// readWrong reads the chunks of a tree while their registry sends wrong bytes, each with an empty
// cache, ahead and as the device does. No other bytes than the good ones are read or stored. It
// returns how many chunks could not be read.
func readWrong(
	t *testing.T, m *Images, change func(a *store.Answer), what string, good map[chunk.Ref][]byte,
) (failed int) {
	t.Helper()
	for ref, want := range good {
		cache := cachetest.NewMemory()
		fetcher := store.NewFetcher(observe(m, change), cache)
		share := fetcher.Share()
		ahead := share.Prefetch(t.Context(), ref)
		// Readers try again. Here it is enough that the first try ends.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		plain := make([]byte, ref.Length)
		err := share.Read(ctx, ref, 0, plain, cancel)
		cancel()
		fetcher.Wait()
		if err == nil && !bytes.Equal(plain, want) {
			t.Errorf("%s: other bytes of chunk %s were read", what, ref.ID.Short())
		}
		if err != nil && ahead != nil {
			failed++
		}
		for ref, want := range good {
			stored := make([]byte, ref.Length)
			if cache.Read(ref, 0, stored) && !bytes.Equal(stored, want) {
				t.Errorf("%s: other bytes of chunk %s were stored", what, ref.ID.Short())
			}
		}
	}
	return failed
}
