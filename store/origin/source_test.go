package origin_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/pack"
	"lighter/store"
	"lighter/store/origin"
	"lighter/test/testkit/sourcetest"
	"lighter/wire"
	"lighter/wire/client"
)

// A Failover over one hub keeps the promises of store.Source.
func TestSource(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T, chunks [][]byte) (store.Source, []chunk.Ref) {
		var refs []chunk.Ref
		objects := map[string][]byte{} // by path
		encoder := compress.UnitEncoder(zstd.SpeedFastest, pack.MaxPlain)
		for i, plain := range chunks {
			ref := chunk.Ref{ID: chunk.Sum(plain), Length: uint32(len(plain)),
				Unit: chunk.Unit{Pack: chunk.Sum([]byte("pack")), N: uint32(i)}}
			var unit pack.UnitBuilder
			unit.Add(ref.ID, plain)
			encoded := unit.Encode(nil, encoder)
			objects[wire.UnitPath(wire.DefaultScope, ref.Unit)] = encoded
			objects[wire.ChunkPath(wire.DefaultScope, ref.ID)] = encoded
			refs = append(refs, ref)
		}
		hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			encoded, ok := objects[req.URL.Path]
			if !ok {
				w.Header().Set(wire.MissingHeader, "1")
				w.WriteHeader(http.StatusNotFound)
				return
			}
			_, _ = w.Write(encoded)
		}))
		t.Cleanup(hub.Close)
		f, err := origin.New(slog.New(slog.DiscardHandler), client.Options{URL: hub.URL})
		if err != nil {
			t.Fatal(err)
		}
		return f, refs
	})
}
