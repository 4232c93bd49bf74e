package index

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
)

// Maps with far more pages than there are slots each read their own pages, although they replace
// each other's pages in the cache.
func TestMapsShareFewPages(t *testing.T) {
	const maps, places = 4, 3
	shared := NewPages(places)
	var readers sync.WaitGroup
	for n := range maps {
		m, whole := made(t, many(t, 200+n))
		if m.Pages <= places {
			t.Fatalf("only %d pages", m.Pages)
		}
		var extents bytes.Buffer
		if _, err := Receive(bytes.NewReader(whole), m.ID(), &extents, io.Discard); err != nil {
			t.Fatal(err)
		}
		x, err := OpenMap(bytes.NewReader(extents.Bytes()), m.ID(), shared)
		if err != nil {
			t.Fatal(err)
		}
		alone, err := OpenMap(bytes.NewReader(extents.Bytes()), m.ID(), NewPages(1000))
		if err != nil {
			t.Fatal(err)
		}
		readers.Go(func() {
			r := rand.New(rand.NewPCG(4, uint64(n)))
			for range 5000 {
				i := r.Int64N(x.Extents)
				got, err := x.Extent(i)
				want, _ := alone.Extent(i)
				if err != nil || got != want {
					t.Errorf("extent %d is %v, %v; want %v", i, got, err, want)
					return
				}
			}
		})
	}
	readers.Wait()
}

// A page is read only once as long as no other page replaces it. Verify replaces no page.
func TestPagesAreKept(t *testing.T) {
	m, whole := made(t, many(t, 200))
	var extents bytes.Buffer
	if _, err := Receive(bytes.NewReader(whole), m.ID(), &extents, io.Discard); err != nil {
		t.Fatal(err)
	}
	file := &countingReader{r: bytes.NewReader(extents.Bytes())}
	x, err := OpenMap(file, m.ID(), NewPages(int(m.Pages)))
	if err != nil {
		t.Fatal(err)
	}
	for round, want := range []int64{m.Pages, 0} {
		file.reads = 0
		for i := range x.Extents {
			if _, err := x.Extent(i); err != nil {
				t.Fatal(err)
			}
		}
		if file.reads != want {
			t.Errorf("round %d: %d pages were read, want %d", round, file.reads, want)
		}
	}
	other, err := OpenMap(bytes.NewReader(extents.Bytes()), m.ID(), x.pages)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Verify(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Extent(0); err != nil || file.reads != 0 {
		t.Errorf("after another map was verified: %d pages were read (%v), want none", file.reads, err)
	}
}

type countingReader struct {
	r     io.ReaderAt
	reads int64
}

func (c *countingReader) ReadAt(b []byte, at int64) (int, error) {
	c.reads++
	return c.r.ReadAt(b, at)
}
