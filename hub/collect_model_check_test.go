package hub_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/store"
	"lighter/test/testkit/catalogtest"
)

// execute executes statements on the hub's database.
func (h *testHub) execute(statements ...string) {
	h.t.Helper()
	db, err := catalogtest.OpenLarge(cmp.Or(h.config.Catalog, filepath.Join(h.config.Root, "catalog.db")))
	if err != nil {
		h.t.Fatal(err)
	}
	defer db.Close()
	for _, one := range statements {
		if err := db.Execute(h.t.Context(), one); err != nil {
			h.t.Fatalf("%s: %v", one, err)
		}
	}
}

// overlookChunks makes the mark overlook the chunks of one layer, until back is called.
func (m *model) overlookChunks() (back func()) {
	const overlooked = ` WHERE diff_id IN (SELECT diff_id FROM overlooked)`
	m.h.execute(fmt.Sprintf(`CREATE TABLE overlooked AS
		SELECT diff_id, chunks FROM layers ORDER BY diff_id LIMIT 1 OFFSET %d`, m.random.IntN(len(m.layers))),
		`UPDATE layers SET chunks = substr(chunks, 1, 0)`+overlooked)
	return func() {
		m.h.execute(`UPDATE layers SET chunks = (SELECT o.chunks FROM overlooked o WHERE o.diff_id = layers.diff_id)`+
			overlooked, `DROP TABLE overlooked`)
	}
}

// overlook makes the mark overlook the rows of a table that meet a condition, until back is called.
func (m *model) overlook(table, condition string) (back func()) {
	m.h.execute(`CREATE TABLE overlooked AS SELECT * FROM `+table+condition, `DELETE FROM `+table+condition)
	return func() { m.h.execute(`INSERT INTO `+table+` SELECT * FROM overlooked`, `DROP TABLE overlooked`) }
}

// needed returns the trees that the hub has to serve, and why.
func (m *model) needed() map[chunk.ID]string {
	all := map[chunk.ID]string{}
	for tree := range m.kept {
		all[tree] = "a removed image"
	}
	for holder, tree := range m.held {
		all[tree] = holder
	}
	for name, trees := range m.trees {
		for _, tree := range trees {
			all[tree] = name
		}
	}
	return all
}

// check reads everything that the hub has to serve.
func (m *model) check() error {
	for tree, why := range m.needed() {
		if err := readTree(m.h.t, m.h.origins(), tree, true); err != nil {
			return fmt.Errorf("tree %s of %s: %w", tree.Short(), why, err)
		}
		if err := m.checkLocations(tree); err != nil {
			return fmt.Errorf("earlier locations of tree %s of %s: %w", tree.Short(), why, err)
		}
	}
	for name, i := range m.images {
		if err := m.checkBlobs(name, i); err != nil {
			return fmt.Errorf("%s in the registry: %w", name, err)
		}
	}
	return nil
}

// checkLocations reads every chunk of a tree at the places in its earlier locations, and notes its
// present locations.
func (m *model) checkLocations(tree chunk.ID) error {
	extents := m.h.extents(tree.String())
	now, sum := fetchNewer(m.h.t, m.h.origins(), extents.Header, chunk.ID{})
	for _, locations := range m.earlier[tree] {
		for i := range extents.Extents {
			e, err := extents.Extent(i)
			if err != nil {
				return err
			}
			unit, err := locations.Unit(i)
			if err != nil {
				return err
			}
			if err := m.h.origins().FetchUnit(m.h.t.Context(), unit, func(a store.Answer) error {
				encoded, err := io.ReadAll(a.Body)
				if err != nil {
					return err
				}
				decoded, err := pack.DecodeUnit(encoded)
				if err == nil {
					_, err = decoded.Lookup(e.ID)
				}
				return err
			}); err != nil {
				return err
			}
		}
	}
	if m.earlier[tree] == nil {
		m.earlier[tree] = map[chunk.ID]*index.Locations{}
	}
	m.earlier[tree][sum] = now
	return nil
}

// checkBlobs reads a manifest and all that it names from the hub's registry.
func (m *model) checkBlobs(name string, i fakeImage) error {
	repository, tag, _ := strings.Cut(name, ":")
	manifest, config, blobs := i.build()
	want, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	status, got, _ := m.h.do("GET", "/v2/"+repository+"/manifests/"+tag, nil, "Accept", manifest.MediaType)
	if status != 200 || !bytes.Equal(got, want) {
		return fmt.Errorf("manifest: %d %s, want 200 and %s", status, got, want)
	}
	for _, want := range append(blobs, config) {
		d := digest.FromBytes(want)
		if status, _, got, err := m.h.getBlob(repository, d); status != 200 || err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("blob %s: %d, %d bytes of %d, %w", d, status, len(got), len(want), err)
		}
	}
	return nil
}

func idOf(t *testing.T, text string) chunk.ID {
	t.Helper()
	id, err := chunk.ParseID(text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
