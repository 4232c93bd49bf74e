package origin

import (
	"net/http"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/pack"
	"lighter/store"
	"lighter/test/testkit/sourcetest"
	"lighter/wire"
)

// A hub passes the suite for sources, also behind another hub that has nothing.
func TestConformance(t *testing.T) {
	encoder := compress.UnitEncoder(zstd.SpeedFastest, pack.MaxPlain)
	serve := func(chunks [][]byte) (http.HandlerFunc, []chunk.Ref) {
		var unit pack.UnitBuilder
		var refs []chunk.Ref
		where := chunk.Unit{Pack: chunk.ID{7}, N: 3}
		objects := map[string][]byte{}
		for _, plain := range chunks {
			ref := chunk.Ref{ID: chunk.Sum(plain), Length: uint32(len(plain)), Unit: where}
			unit.Add(ref.ID, plain)
			refs = append(refs, ref)
		}
		encoded := unit.Encode(nil, encoder)
		objects[wire.UnitPath(wire.DefaultDomain, where)] = encoded
		for _, ref := range refs {
			objects[wire.ChunkPath(wire.DefaultDomain, ref.ID)] = encoded
		}
		return func(w http.ResponseWriter, r *http.Request) {
			object, ok := objects[r.URL.Path]
			if !ok {
				missing(w, r)
				return
			}
			_, _ = w.Write(object)
		}, refs
	}
	t.Run("one", func(t *testing.T) {
		sourcetest.Run(t, func(t *testing.T, chunks [][]byte) (store.Source, []chunk.Ref) {
			hub, refs := serve(chunks)
			return origins(t, hub), refs
		})
	})
	t.Run("second", func(t *testing.T) {
		sourcetest.Run(t, func(t *testing.T, chunks [][]byte) (store.Source, []chunk.Ref) {
			hub, refs := serve(chunks)
			return origins(t, missing, hub), refs
		})
	})
}
