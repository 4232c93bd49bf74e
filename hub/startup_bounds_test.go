package hub_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/format/index"
	"lighter/format/trace"
	"lighter/hub/catalog"
)

// Absurd traces of an image make the hub store a bounded number of bytes, and do not affect other
// images.
func TestAbsurdTraces(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	h.push("b:1", image(startsTar(40)))
	got, other := h.ready("a:1"), h.ready("b:1")
	m, unharmed := h.extents(got.Tree), h.extents(other.Tree)
	h.traced(unharmed, 3)
	_, want := h.startups(unharmed)

	// A trace of the whole image, with repeated reads.
	all := []int{9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3}
	h.traced(m, all...)
	h.fetchTree(got.Chain)
	// Nonsense: all pages of the device, in a random order.
	tr := trace.Trace{Tree: m.ID()}
	for i := range int64(20_000) {
		tr.Reads = append(tr.Reads, trace.Read{Offset: i * 7919 % (m.DeviceSize / 4096) * 4096, Length: 4096})
	}
	if err := h.origins().SendTrace(t.Context(), m.ID(), tr); err != nil {
		t.Fatal(err)
	}
	h.await(m.ID())
	h.fetchTree(got.Chain)

	// Hundreds of traces at the same time, while the image is removed and pushed again.
	var senders sync.WaitGroup
	statuses := make([]int, 600)
	body := trace.Trace{Reads: filesOf(t, m)[:3]}.Encode()
	for i := range 8 {
		senders.Go(func() {
			for n := i; n < len(statuses); n += 8 {
				statuses[n], _, _ = h.do("POST", "/lighter/1/default/traces/"+got.Tree, body)
			}
		})
	}
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	h.push("a:1", image(startsTar(10)))
	senders.Wait()
	h.ready("a:1")
	for _, status := range statuses {
		if status != 204 && status != 404 && status != 429 {
			t.Fatalf("the traces got %v, want 204, 404 and 429 only", statuses)
		}
	}
	h.await(m.ID())
	h.fetchTree(got.Chain)
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	if _, in := h.startups(unharmed); fmt.Sprint(in) != fmt.Sprint(want) {
		t.Errorf("another image has startup packs with the files %v, want %v", in, want)
	}
	if held, err := h.Catalog().Starts.StartHoldings(t.Context()); err != nil || held.TraceBytes > 1<<20 ||
		held.PackBytes > 32<<20 {
		t.Errorf("the hub keeps %+v, %v, want at most 1 MiB of traces and 32 MiB of packs", held, err)
	}
}

// Retired startup packs are served for a while and then deleted. If a removed image is pushed again
// meanwhile, it has its startup packs again. Later they are deleted with the recordings.
func TestRetiredStartupPacks(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	got := h.pushReady("a:1", image(startsTar(10)))
	m := h.extents(got.Tree)
	h.traced(m, 1, 2)
	first, _ := h.startups(m)
	for range 3 { // another workload, with more starts
		h.traced(m, 2, 6, 7, 8, 9)
	}
	second, _ := h.startups(m)
	if len(first) != 1 || slices.ContainsFunc(second, func(s index.Startup) bool { return s.Pack == first[0].Pack }) {
		t.Fatalf("startup packs %+v, after more traces %+v, want one, then others", first, second)
	}
	unit := func(s index.Startup) string { return "/lighter/1/default/packs/" + s.Pack.String() + "/0" }
	sweep := func(before time.Time) {
		if err := h.Starts().Sweep(t.Context(), before); err != nil {
			t.Fatal(err)
		}
	}
	sweep(time.Now().Add(-time.Hour))
	h.expect(unit(first[0]), 200)
	sweep(time.Now().Add(time.Hour))
	h.expect(unit(first[0]), 404)
	h.expect(unit(second[0]), 200)

	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	sweep(time.Now().Add(-time.Hour))
	h.pushReady("a:1", image(startsTar(10)))
	if again, _ := h.startups(m); fmt.Sprint(again) != fmt.Sprint(second) {
		t.Errorf("the image was added again with the packs %+v, want %+v", again, second)
	}
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	h.Starts().Timing.Keep = -time.Hour
	sweep(time.Now().Add(time.Hour))
	h.await(m.ID())
	sweep(time.Now().Add(time.Hour))
	h.expect(unit(second[0]), 404)
	if held, err := h.Catalog().Starts.StartHoldings(t.Context()); err != nil || held != (catalog.StartHoldings{}) {
		t.Errorf("the hub keeps %+v, %v, want nothing", held, err)
	}
}

// Clients that announce traces and do not send them reserve a bounded number of bytes. Meanwhile
// other traces get 503.
func TestAnnouncedTraces(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	path := "/lighter/1/default/traces/" + h.pushReady("a:1", image(startsTar(10))).Tree
	body := trace.Trace{Reads: []trace.Read{{Length: 4096}}}.Encode()
	address := strings.TrimPrefix(h.url, "http://")
	var silent []net.Conn
	for range 64 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n{", path, address,
			trace.MaxBytes); err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	status := 0
	for range 10 { // until the hub has read the headers of the silent clients
		if status, _, _ = h.do("POST", path, body); status == 503 {
			break
		}
	}
	if status != 503 {
		t.Errorf("while 64 clients announce traces: %d, want 503", status)
	}
	for _, c := range silent {
		c.Close()
	}
	for range 10 {
		if status, _, _ = h.do("POST", path, body); status == 204 {
			return
		}
	}
	t.Errorf("after these clients have closed their connections: %d, want 204", status)
}
