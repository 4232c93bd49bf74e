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

// Whatever nodes send costs bounded bytes of its own image, and no other image
// anything.
func TestAbsurdTraces(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	h.push("b:1", image(startsTar(40)))
	got, other := h.ready("a:1"), h.ready("b:1")
	m, unharmed := h.extents(got.Tree), h.extents(other.Tree)
	h.traced(unharmed, 3)
	_, want := h.startups(unharmed)

	// The whole image, of which much is read twice.
	all := []int{9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3}
	h.traced(m, all...)
	h.fetchTree(got.Chain)
	// Nonsense: each page of the device, in an order that nothing has.
	tr := trace.Trace{Tree: m.ID()}
	for i := range int64(20_000) {
		tr.Reads = append(tr.Reads, trace.Read{Offset: i * 7919 % (m.DeviceSize / 4096) * 4096, Length: 4096})
	}
	if err := h.origins().SendTrace(t.Context(), m.ID(), tr); err != nil {
		t.Fatal(err)
	}
	h.await(m.ID())
	h.fetchTree(got.Chain)

	// Thousands at once, while the image is taken away and comes back.
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
			t.Fatalf("statuses are %v", statuses)
		}
	}
	h.await(m.ID())
	h.fetchTree(got.Chain)
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	if _, in := h.startups(unharmed); fmt.Sprint(in) != fmt.Sprint(want) {
		t.Errorf("another image's startup packs have the files %v, and had %v", in, want)
	}
	if held, err := h.Catalog().StartHoldings(t.Context()); err != nil || held.TraceBytes > 1<<20 || held.PackBytes > 32<<20 {
		t.Errorf("%+v is kept, %v", held, err)
	}
}

// Packs that no locations name any more are served for a while and then go, with
// the traces of images that were taken away. What is there once more stays.
func TestStartupPacksHaveTheirTime(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	got := h.ready("a:1")
	m := h.extents(got.Tree)
	h.traced(m, 1, 2)
	first, _ := h.startups(m)
	for range 3 { // another way to start, more often
		h.traced(m, 2, 6, 7, 8, 9)
	}
	second, _ := h.startups(m)
	if len(first) != 1 || slices.ContainsFunc(second, func(s index.Startup) bool { return s.Pack == first[0].Pack }) {
		t.Fatalf("there was %+v, is %+v", first, second)
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
	h.push("a:1", image(startsTar(10)))
	h.ready("a:1")
	if again, _ := h.startups(m); fmt.Sprint(again) != fmt.Sprint(second) {
		t.Errorf("the image came back with %+v, and had %+v", again, second)
	}
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	h.Starts().Timing.Keep = -time.Hour
	sweep(time.Now().Add(time.Hour))
	h.await(m.ID())
	sweep(time.Now().Add(time.Hour))
	h.expect(unit(second[0]), 404)
	if held, err := h.Catalog().StartHoldings(t.Context()); err != nil || held != (catalog.StartHoldings{}) {
		t.Errorf("left: %+v, %v", held, err)
	}
}

// Clients that announce traces and do not send them take a bounded room, and the
// hub says so to the others: it does not wait for them, nor hold what they announce.
func TestTracesThatDoNotCome(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	h.push("a:1", image(startsTar(10)))
	path := "/lighter/1/default/traces/" + h.ready("a:1").Tree
	body := trace.Trace{Reads: []trace.Read{{Length: 4096}}}.Encode()
	address := strings.TrimPrefix(h.url, "http://")
	var silent []net.Conn
	for range 64 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n{", path, address, trace.MaxBytes); err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	status := 0
	for range 10 { // until all of them are known
		if status, _, _ = h.do("POST", path, body); status == 503 {
			break
		}
	}
	if status != 503 {
		t.Errorf("while 64 announce all that there is room for: %d, want 503", status)
	}
	for _, c := range silent {
		c.Close()
	}
	for range 10 {
		if status, _, _ = h.do("POST", path, body); status == 204 {
			return
		}
	}
	t.Errorf("when they are gone: %d, want 204", status)
}
