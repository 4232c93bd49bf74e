package hub_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/test/testkit/catalogtest"
	"lighter/wire"
)

// model makes random changes of a hub, and knows which trees the hub has to serve.
type model struct {
	h      *testHub
	random *rand.Rand
	broken string // what the hub is not told, does in spite of the model, or overlooks in its mark
	layers [][]byte
	images map[string]fakeImage
	trees  map[string][]chunk.ID // that the images need, by name
	held   map[string]chunk.ID   // by holder
	kept   map[chunk.ID]bool     // of removed images
}

func newModel(t *testing.T, seed uint64, broken string) *model {
	m := &model{h: startHub(t, func(c *hub.Config) { c.GC = hub.GC{} }), random: rand.New(rand.NewPCG(seed, 1)),
		broken: broken, images: map[string]fakeImage{}, trees: map[string][]chunk.ID{}, held: map[string]chunk.ID{},
		kept: map[chunk.ID]bool{}}
	for range 10 { // with many chunks in common
		files := seeds(1, 30)
		m.random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
		m.layers = append(m.layers, layer(files[:1+m.random.IntN(20)]...))
	}
	return m
}

// step makes one change, and returns its name. An error says what the hub has lost.
func (m *model) step() (string, error) {
	switch n := m.random.IntN(21); {
	case n < 6:
		return "push", m.push()
	case n < 8 && len(m.images) > 0:
		return "retag", m.name(m.anyName(), m.images[m.anyImage()])
	case n < 10 && len(m.images) > 0:
		return "remove", m.remove()
	case n < 11 && len(m.images) > 0:
		return "request the tree of a lower chain", m.lower()
	case n < 12 && len(m.images) > 0:
		return "lay out", m.layOut()
	case n < 14 && len(m.images) > 0:
		return "hold", m.hold()
	case n < 15:
		return "release", m.release()
	case n < 16:
		return "collect and kill", m.collectAndKill()
	case n < 17:
		return "collect beside a push", m.collectBeside()
	case n < 18:
		return "push and kill", m.pushAndKill()
	}
	m.h.Collector().Keep = []time.Duration{0, time.Hour}[m.random.IntN(2)]
	if m.broken == "chunks" {
		return "collect", m.collectWithout(m.random.IntN(len(m.layers)))
	}
	m.h.collect(0)
	return "collect", m.check()
}

func (m *model) anyName() string {
	return fmt.Sprintf("image-%d:1", m.random.IntN(6))
}

// anyImage returns the name of an image.
func (m *model) anyImage() string {
	names := slices.Sorted(maps.Keys(m.images))
	return names[m.random.IntN(len(names))]
}

func (m *model) anyFake() fakeImage {
	var layers [][]byte
	for range 1 + m.random.IntN(3) {
		layers = append(layers, m.layers[m.random.IntN(len(m.layers))])
	}
	return image(layers...)
}

func (m *model) push() error { return m.name(m.anyName(), m.anyFake()) }

// name pushes an image. The name's previous image is removed.
func (m *model) name(name string, i fakeImage) error {
	m.forget(name)
	m.h.push(name, i)
	m.named(name, i)
	return nil
}

// named notes that a name has an image.
func (m *model) named(name string, i fakeImage) {
	got := m.h.readyAndLaid(name)
	m.images[name] = i
	m.trees[name] = []chunk.ID{idOf(m.h.t, got.Tree)}
}

// pushAndKill kills the hub while it ingests an image.
func (m *model) pushAndKill() error {
	name, i := m.anyName(), m.anyFake()
	m.forget(name)
	m.h.push(name, i)
	time.Sleep(time.Duration(m.random.IntN(30)) * time.Millisecond)
	m.restart()
	m.named(name, i)
	return nil
}

// restart kills the hub and runs another one.
func (m *model) restart() {
	m.h.kill()
	m.h = runHub(m.h.t, openHub(m.h.t, m.h.config))
}

// forget notes that a name's image is removed.
func (m *model) forget(name string) {
	if m.broken == "recent" { // the model believes that it stays
		for _, tree := range m.trees[name] {
			m.kept[tree] = true
		}
	}
	delete(m.images, name)
	delete(m.trees, name)
}

func (m *model) remove() error {
	name := m.anyImage()
	m.h.remove(name)
	if m.broken != "images" { // the model believes that it is there
		m.forget(name)
	}
	return nil
}

// lower requests the tree of a chain below an image.
func (m *model) lower() error {
	name := m.anyImage()
	found, err := m.h.client.Inspect(m.h.t.Context(), name)
	if err != nil || len(found) == 0 || len(found[0].Layers) == 0 {
		return err
	}
	layers := found[0].Layers
	statement, err := m.h.origins().Tree(m.h.t.Context(), layers[m.random.IntN(len(layers))].Chain)
	if err != nil {
		return err
	}
	m.trees[name] = append(m.trees[name], statement.Tree)
	return nil
}

// layOut reports a start of an image.
func (m *model) layOut() error {
	name := m.anyImage()
	e := m.h.extents(m.trees[name][0].String())
	files := len(filesOf(m.h.t, e))
	if files == 0 {
		return nil
	}
	m.h.traced(e, m.random.IntN(files))
	return nil
}

func (m *model) hold() error {
	holder, tree := fmt.Sprint("node-", m.random.IntN(3)), m.trees[m.anyImage()][0]
	m.held[holder] = tree
	if m.broken == "held" { // the hub does not hear of it
		return nil
	}
	node := catalog.Holder{ID: holder, Kind: wire.HolderNode, Name: holder}
	bounds := catalog.HeldBounds{Holders: 100, Trees: 100}
	_, err := m.h.Catalog().Holders.SetHeld(m.h.t.Context(), node, []chunk.ID{tree}, bounds)
	return err
}

func (m *model) release() error {
	for holder := range m.held {
		delete(m.held, holder)
		if m.broken == "held" {
			return nil
		}
		return m.h.Catalog().Holders.ForgetHolder(m.h.t.Context(), holder)
	}
	return nil
}

// collectAndKill kills the hub in the middle of a collection.
func (m *model) collectAndKill() error {
	reached, steps := make(chan struct{}, 1), 1+m.random.IntN(8)
	m.h.Collector().Step = func(string) {
		if steps--; steps == 0 {
			reached <- struct{}{}
		}
	}
	if _, err := m.h.Collector().Start(m.h.t.Context()); err != nil {
		return err
	}
	select {
	case <-reached:
	case <-time.After(100 * time.Millisecond): // there may be fewer steps
	}
	m.restart()
	return nil
}

func (m *model) collectBeside() error {
	if _, err := m.h.Collector().Start(m.h.t.Context()); err != nil {
		return err
	}
	if err := m.push(); err != nil {
		return err
	}
	m.h.collect(0)
	return m.check()
}

// collectWithout collects while the mark overlooks the chunks of one layer.
func (m *model) collectWithout(layer int) (err error) {
	ctx := m.h.t.Context()
	db, err := catalogtest.OpenLarge(cmp.Or(m.h.config.Catalog, filepath.Join(m.h.config.Root, "catalog.db")))
	if err != nil {
		return err
	}
	defer db.Close()
	execute := func(statement string) {
		if err := db.Execute(ctx, statement); err != nil {
			m.h.t.Fatal(err)
		}
	}
	const overlooked = ` WHERE diff_id IN (SELECT diff_id FROM overlooked)`
	execute(fmt.Sprintf(`CREATE TABLE overlooked AS
		SELECT diff_id, chunks FROM layers ORDER BY diff_id LIMIT 1 OFFSET %d`, layer))
	execute(`UPDATE layers SET chunks = substr(chunks, 1, 0)` + overlooked)
	m.h.collect(0)
	err = m.check()
	execute(`UPDATE layers SET chunks = (SELECT o.chunks FROM overlooked o WHERE o.diff_id = layers.diff_id)` +
		overlooked)
	execute(`DROP TABLE overlooked`)
	return err
}

// check reads every chunk of every tree that the hub has to serve.
func (m *model) check() error {
	from, read := m.h.origins(), map[chunk.ID]bool{}
	one := func(why string, tree chunk.ID) error {
		if read[tree] {
			return nil
		}
		read[tree] = true
		if err := readTree(m.h.t, from, tree, true); err != nil {
			return fmt.Errorf("tree %s of %s: %w", tree.Short(), why, err)
		}
		return nil
	}
	for name, trees := range m.trees {
		for _, tree := range trees {
			if err := one(name, tree); err != nil {
				return err
			}
		}
	}
	for holder, tree := range m.held {
		if err := one(holder, tree); err != nil {
			return err
		}
	}
	for tree := range m.kept {
		if err := one("a removed image", tree); err != nil {
			return err
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

// Whatever happens in which order, every tree that an image has or a node holds can be read, and
// the bucket has what the catalog names.
func TestCollectionModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := newModel(t, seed, "")
			for n := range 40 {
				if what, err := m.step(); err != nil {
					t.Fatalf("step %d, %s: %v", n, what, err)
				}
			}
			for name := range maps.Clone(m.images) {
				m.h.remove(name)
			}
			for len(m.held) > 0 {
				if err := m.release(); err != nil {
					t.Fatal(err)
				}
			}
			m.h.Collector().Keep = 0
			m.h.collect(0)
			// Startup packs that newer ones have replaced stay for a week.
			if err := m.h.Starts().Sweep(t.Context(), time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			if left := m.h.holdings(); len(left.objects) > 0 || left.inventory != (catalog.Inventory{}) {
				t.Errorf("without images, the hub has %+v", left)
			}
		})
	}
}

// The model finds out if the collection forgets one kind of what is needed.
func TestCollectionModelFindsABrokenMark(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{"images", "held", "recent", "chunks"} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			m := newModel(t, 7, broken)
			for range 300 {
				if _, err := m.step(); err != nil {
					return
				}
			}
			t.Error("the model has found nothing")
		})
	}
}
