//go:build e2e

package node

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/node/report"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
)

// startupProxy is a proxy in front of a hub. It records the units that a start requests, and
// can then make and serve a startup pack of them.
type startupProxy struct {
	mu        sync.Mutex        // guards the fields below
	requested []string          // paths of requested units, in order
	locations map[string][]byte // by path: locations that name the startup pack, instead of the hub's
	units     map[string][]byte // by path: units of the startup pack
	hold      chan struct{}     // requests for the startup pack wait until it is closed; nil: no wait
}

// handle answers requests for the startup pack, and for the locations that name it.
func (s *startupProxy) handle(w http.ResponseWriter, r *http.Request) bool {
	s.mu.Lock()
	if strings.Contains(r.URL.Path, "/packs/") {
		s.requested = append(s.requested, r.URL.Path)
	}
	b, hold := s.locations[r.URL.Path], (chan struct{})(nil)
	if b == nil {
		b, hold = s.units[r.URL.Path], s.hold
	}
	s.mu.Unlock()
	if b == nil {
		return false
	}
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}
	_, _ = w.Write(b) // the client may be gone
	return true
}

// count returns how many different units of the startup pack were requested, and the largest number
// of requests for one unit.
func (s *startupProxy) count() (units, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	times := map[string]int{}
	for _, path := range s.requested {
		if s.units[path] != nil {
			times[path]++
			most = max(most, times[path])
		}
	}
	return len(times), most
}

// setHold makes requests for the startup pack wait, or releases them.
func (s *startupProxy) setHold(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold != nil {
		close(s.hold)
		s.hold = nil
	}
	if on {
		s.hold = make(chan struct{})
	}
}

// forget clears the recorded requests, and returns their paths without duplicates.
func (s *startupProxy) forget() (paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for _, path := range s.requested {
		if !seen[path] {
			paths = append(paths, path)
		}
		seen[path] = true
	}
	s.requested = nil
	return paths
}

// serveStartup makes one startup pack of a tree from the chunks of the hub's units at paths, and
// serves it. The pack's units have about 512 KiB, the first three less. serveStartup returns the
// number of these units.
func (s *startupProxy) serveStartup(t *testing.T, tree chunk.ID, paths []string) int {
	t.Helper()
	const base = "/lighter/1/default/"
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	plain := func(path string) []byte {
		b, err := decoder.DecodeAll(ofHub(t, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var packed bytes.Buffer
	writer := pack.NewWriter(&packed)
	var builder pack.UnitBuilder
	var units [][]byte
	size := 0
	places := map[chunk.ID]uint32{}
	flush := func() {
		if builder.Len() == 0 {
			return
		}
		unit := builder.Encode(nil, encoder)
		if _, err := writer.Add(unit); err != nil {
			t.Fatal(err)
		}
		units, size = append(units, unit), 0
		builder.Reset()
	}
	for _, path := range paths {
		unit, err := pack.DecodeUnit(ofHub(t, path))
		if err != nil {
			t.Fatal(err)
		}
		for i := range unit.Len() {
			b, err := unit.Chunk(i)
			if err != nil {
				t.Fatal(err)
			}
			id := unit.Ref(i).ID
			if _, known := places[id]; known {
				continue
			}
			places[id] = uint32(len(units))
			builder.Add(id, b)
			if size += len(b); size >= min(64<<10<<min(len(units), 3), 512<<10) {
				flush()
			}
		}
	}
	flush()
	id, _, err := writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	var extents bytes.Buffer
	if _, err := index.Receive(bytes.NewReader(plain(base+"indexes/"+tree.String())), tree, &extents,
		io.Discard); err != nil {
		t.Fatal(err)
	}
	m, err := index.OpenMap(bytes.NewReader(extents.Bytes()), tree, index.NewPages(64))
	if err != nil {
		t.Fatal(err)
	}
	path := base + "locations/" + tree.String()
	old := plain(path)
	before, err := index.OpenLocations(bytes.NewReader(old), int64(len(old)), tree, m.Extents)
	if err != nil {
		t.Fatal(err)
	}
	locations := index.NewLocations(tree)
	for i := range m.Extents {
		e, err := m.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		where, err := before.Unit(i)
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := places[e.ID]; ok {
			where = chunk.Unit{Pack: id, N: n}
		}
		locations.Add(where)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var sizes []uint32
	s.units, s.locations = map[string][]byte{}, map[string][]byte{}
	for n, unit := range units {
		sizes = append(sizes, uint32(len(unit)))
		s.units[base+"packs/"+chunk.Unit{Pack: id, N: uint32(n)}.String()] = unit
	}
	locations.Startup(index.Startup{Pack: id, Units: sizes, AtMount: true})
	s.locations[path] = encoder.EncodeAll(locations.Encode(), nil)
	return len(units)
}

// ofHub gets a path directly from the hub.
func ofHub(t *testing.T, path string) []byte {
	t.Helper()
	res, err := http.Get(site.HubURL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("GET %s from the hub: %s (%v), want 200", path, res.Status, err)
	}
	return b
}

// The hub has a startup pack with the chunks that a start reads. The node fetches all of it after
// the pull, before a container starts. Then hardly any read waits, and no unit is fetched twice.
// Containers also run if the node is killed or the image is removed during this fetch.
func TestStartThatIsKnown(t *testing.T) {
	var proxy startupProxy
	address, end, err := site.Intercept(proxy.handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	t.Cleanup(func() { proxy.setHold(false) })
	s := startSiteWith(t, site.Options{Hubs: []string{address}, NodeArgs: []string{"--prefetch=false"}}, "python")
	run := func(t *testing.T) {
		t.Helper()
		ran, err := s.Machine.Run(t.Context(), site.Lighter, site.Reference("python"), "python3", "-c",
			"print('hello')")
		if err != nil || ran.Output != "hello\n" {
			t.Errorf("python3 printed %q (%v), want %q", ran.Output, err, "hello\n")
		}
	}
	mounted := func(t *testing.T) report.MountStatus {
		t.Helper()
		st := nodeStatus(t, s)
		if len(st.Mounts) != 1 {
			t.Fatalf("mounts: %+v, want one", st.Mounts)
		}
		return st.Mounts[0]
	}
	wipe := func(t *testing.T) {
		t.Helper()
		if err := s.Machine.Wipe(t.Context()); err != nil {
			t.Fatal(err)
		}
		proxy.forget()
	}
	pull(t, s, "python")
	run(t)
	withoutPack := mounted(t)
	if withoutPack.Device.Waited.Fetched < 10 { // some reads find units that another read has requested
		t.Fatalf("without a startup pack %d reads waited, want at least 10", withoutPack.Device.Waited.Fetched)
	}
	units := proxy.serveStartup(t, withoutPack.Tree, proxy.forget())
	s.SetNodeArgs()

	t.Run("start", func(t *testing.T) {
		wipe(t)
		pull(t, s, "python")
		eventually.Holds(t, "the startup pack", func() bool {
			n, _ := proxy.count()
			st := nodeStatus(t, s).Fetched
			return n == units && st.InFlight.Background == 0 && st.Storing == 0
		})
		run(t)
		if m := mounted(t).Device; m.Waited.Fetched > 5 {
			t.Errorf("%d of %d reads waited for the hub, want at most 5", m.Waited.Fetched, m.Faults)
		}
		if _, most := proxy.count(); most != 1 {
			t.Errorf("a unit was requested %d times, want once", most)
		}
		if y := nodeStatus(t, s).Ahead.Startup; y.Fetched == 0 || y.Used < y.Added/2 {
			t.Errorf("yield of startup packs: %+v, want at least half of the prefetched bytes used", y)
		}
	})
	t.Run("cached", func(t *testing.T) {
		if err := s.Machine.RemoveImage(t.Context(), site.Reference("python")); err != nil {
			t.Fatal(err)
		}
		pull(t, s, "python")
		want := nodeStatus(t, s).Ahead.Startup.Added
		eventually.Holds(t, "the startup pack from the disk", func() bool {
			return nodeStatus(t, s).Ahead.Loaded >= want
		})
		run(t)
		if n, most := proxy.count(); n != units || most != 1 {
			t.Errorf("%d units were requested, one of them %d times; want all %d once", n, most, units)
		}
	})
	t.Run("killed", func(t *testing.T) {
		wipe(t)
		proxy.setHold(true)
		pull(t, s, "python")
		eventually.Holds(t, "a request for the startup pack", func() bool { n, _ := proxy.count(); return n > 0 })
		s.Machine.KillNode()
		proxy.setHold(false)
		restart(t, s)
		run(t)
		eventually.Holds(t, "the startup pack", func() bool { n, _ := proxy.count(); return n == units })
	})
	t.Run("removed", func(t *testing.T) {
		wipe(t)
		proxy.setHold(true)
		pull(t, s, "python")
		eventually.Holds(t, "a request for the startup pack", func() bool { n, _ := proxy.count(); return n > 0 })
		if err := s.Machine.RemoveImage(t.Context(), site.Reference("python")); err != nil {
			t.Error(err)
		}
		eventually.Holds(t, "the end of the prefetch", func() bool {
			st := nodeStatus(t, s).Fetched
			return st.InFlight.Background == 0 && st.Link.InFlight == 0
		})
		proxy.setHold(false)
		pull(t, s, "python")
		run(t)
	})
}
