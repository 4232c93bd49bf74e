package hub_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/wire"
)

// soak is true if the long form of tests runs.
var soak = os.Getenv("LIGHTER_SOAK") != ""

// model makes random changes of a hub, and knows which trees and blobs the hub has to serve.
type model struct {
	h       *testHub
	random  *rand.Rand
	broken  string        // kind of needed rows that the hub's mark overlooks; empty: none
	delay   time.Duration // how long trees of removed images stay
	layers  [][]byte
	images  map[string]fakeImage
	trees   map[string][]chunk.ID                      // that images need, by name of the image
	held    map[string]chunk.ID                        // tree of each holder
	kept    map[chunk.ID]bool                          // trees of removed images, if delay is set
	earlier map[chunk.ID]map[chunk.ID]*index.Locations // that nodes may still have, by tree and digest of the locations
}

// newModel returns a model. With odd seeds, trees of removed images stay for an hour.
func newModel(t *testing.T, seed uint64, broken string) *model {
	m := &model{random: rand.New(rand.NewPCG(seed, 1)),
		broken: broken, images: map[string]fakeImage{}, trees: map[string][]chunk.ID{}, held: map[string]chunk.ID{},
		kept: map[chunk.ID]bool{}, earlier: map[chunk.ID]map[chunk.ID]*index.Locations{}}
	if seed%2 == 1 && broken == "" || broken == "recent" {
		m.delay = time.Hour
	}
	m.h = startHub(t, func(c *hub.Config) {
		c.GC = hub.GC{DelayMinutes: int64(m.delay / time.Minute), KeepMinutes: 60}
	})
	for range 10 { // the layers have many chunks in common
		files := seeds(1, 30)
		m.random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
		m.layers = append(m.layers, layer(files[:1+m.random.IntN(20)]...))
	}
	return m
}

// step makes one change, and returns its name. An error says what the hub has lost.
func (m *model) step() (string, error) {
	switch n := m.random.IntN(23); {
	case n < 6:
		return "push", m.push()
	case n < 8 && len(m.images) > 0:
		return "retag", m.name(m.anyName(), m.images[m.anyImage()])
	case n < 10 && len(m.images) > 0:
		return "remove", m.remove()
	case n < 11 && len(m.images) > 0:
		return "request the tree of a lower chain", m.lower()
	case n < 12 && len(m.images) > 0:
		return "report a start", m.reportStart()
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
	case n < 20:
		return "add from another registry", m.add()
	}
	return "collect", m.collect()
}

// choose waits until the hub is idle, and chooses how long the next collection keeps rewritten
// packs.
func (m *model) choose() {
	m.h.idle()
	m.h.Collector().Keep = []time.Duration{0, time.Hour}[m.random.IntN(2)]
	if m.h.Collector().Keep == 0 {
		clear(m.earlier)
	}
}

// collect collects, and checks that the hub serves everything that it has to.
func (m *model) collect() error {
	m.choose()
	m.h.Blobs().Delay = 0
	time.Sleep(2 * time.Millisecond) // so that all blobs were touched before the run
	overlooks := map[string]func() (back func()){
		"chunks": m.overlookChunks,
		"images": func() func() {
			return m.overlook("image_blobs", ` WHERE image IN (SELECT n FROM images WHERE name = '`+m.anyImage()+`')`)
		},
		"held": func() func() { return m.overlook("held", "") },
		"recent": func() func() {
			m.h.execute(`UPDATE trees SET dead = 1 WHERE dead > 0`)
			return func() {}
		},
	}
	back := func() {}
	if m.broken != "" && len(m.images) > 0 {
		back = overlooks[m.broken]()
	}
	m.h.collect(m.delay)
	m.h.Blobs().Delay = 24 * time.Hour
	err := m.check()
	back()
	return err
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

// add adds an image from another registry.
func (m *model) add() error {
	name, i := m.anyName(), m.anyFake()
	m.forget(name)
	m.h.added(wire.Add{Source: startRegistry(m.h.t, i).source(), Name: name})
	m.named(name, i)
	return nil
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
	if m.delay > 0 {
		for _, tree := range m.trees[name] {
			m.kept[tree] = true
		}
	}
	delete(m.images, name)
	delete(m.trees, name)
	m.forgetEarlier()
}

// forgetEarlier forgets the earlier locations of trees that the hub need not serve any more.
func (m *model) forgetEarlier() {
	needed := m.needed()
	maps.DeleteFunc(m.earlier, func(tree chunk.ID, _ map[chunk.ID]*index.Locations) bool { return needed[tree] == "" })
}

func (m *model) remove() error {
	name := m.anyImage()
	m.h.remove(name)
	m.forget(name)
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

// reportStart reports a start of an image, and waits for the layout.
func (m *model) reportStart() error {
	name := m.anyImage()
	e := m.h.extents(m.trees[name][0].String())
	files := len(filesOf(m.h.t, e))
	if files == 0 {
		return nil
	}
	m.h.traced(e, m.random.IntN(files))
	return nil
}

// hold reports that a node has the tree of an image.
func (m *model) hold() error {
	holder, tree := fmt.Sprint("node-", m.random.IntN(3)), m.trees[m.anyImage()][0]
	m.held[holder] = tree
	node := catalog.Holder{ID: holder, Kind: wire.HolderNode, Name: holder}
	bounds := catalog.HeldBounds{Holders: 100, Trees: 100}
	_, err := m.h.Catalog().Holders.SetHeld(m.h.t.Context(), node, []chunk.ID{tree}, bounds)
	return err
}

// release forgets a holder.
func (m *model) release() error {
	for holder := range m.held {
		delete(m.held, holder)
		m.forgetEarlier()
		return m.h.Catalog().Holders.ForgetHolder(m.h.t.Context(), holder)
	}
	return nil
}

// collectAndKill kills the hub in the middle of a collection.
func (m *model) collectAndKill() error {
	m.choose()
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

// collectBeside starts a collection, pushes an image meanwhile, and collects again.
func (m *model) collectBeside() error {
	m.choose()
	if _, err := m.h.Collector().Start(m.h.t.Context()); err != nil {
		return err
	}
	if err := m.push(); err != nil {
		return err
	}
	return m.collect()
}

// modelSeeds returns the seeds of the models that run, and the number of their steps. The long form
// adds random seeds and more steps. LIGHTER_SEED=N runs only seed N.
func modelSeeds(t *testing.T) (seeds []uint64, steps int) {
	seeds, steps = []uint64{0, 1}, 40
	if soak {
		for range 6 {
			seeds = append(seeds, rand.Uint64())
		}
		steps = 300
	}
	if text := os.Getenv("LIGHTER_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	return seeds, steps
}

// After any sequence of changes, every tree that an image has or a node holds can be read, also
// with earlier locations, and every image can be pulled. After the removal of all images and
// holders, nothing is left.
func TestCollectionModel(t *testing.T) {
	t.Parallel()
	seeds, steps := modelSeeds(t)
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			defer func() {
				if t.Failed() {
					t.Logf("to run this again, set LIGHTER_SEED=%d; LIGHTER_SOAK is set: %t", seed, soak)
				}
			}()
			m := newModel(t, seed, "")
			for n := range steps {
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
			m.h.idle()
			m.h.Collector().Keep = 0
			m.h.collect(0)
			// Startup packs that newer ones have replaced stay for a week.
			if err := m.h.Starts().Sweep(t.Context(), time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			if left := m.h.holdings(); len(left.objects) > 0 || left.inventory != (catalog.Inventory{}) {
				t.Errorf("without images, the hub has %+v, want nothing", left)
			}
			m.h.collectBlobs()
			if left := m.h.registryFiles("blobs/sha256"); len(left) > 0 {
				t.Errorf("without images, the registry has %q, want nothing", left)
			}
		})
	}
}

// If the mark of a collection overlooks one kind of needed rows, the model finds the loss.
func TestCollectionModelFindsABrokenMark(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{"images", "held", "recent", "chunks"} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			m := newModel(t, 7, broken)
			for range 300 {
				if what, err := m.step(); err != nil {
					t.Logf("%s: %v", what, err)
					return
				}
			}
			t.Error("the model has found no loss in 300 steps")
		})
	}
}
