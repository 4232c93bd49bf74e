package hub_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub/objects"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// An image whose copying or ingestion takes too long fails with that reason, and is not retried.
// The next image is ingested.
func TestImagesThatTakeTooLong(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	next := openHub(t, c)
	next.Images().ImageTime = 300 * time.Millisecond
	h := runHub(t, next)
	r := startRegistry(t, image(lowerTar, upperTar))
	slow := digest.FromBytes(gzipped(upperTar))
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) }) // before the registry's server is closed
	r.spoil = func(w http.ResponseWriter, req *http.Request, d digest.Digest, _ []byte) bool {
		if d != slow {
			return false
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-req.Context().Done():
		case <-ended:
		}
		return true
	}
	_, err := h.add(wire.Add{Source: r.source(), Name: "slow:1"})
	if err == nil || !strings.Contains(err.Error(), "image_minutes") {
		t.Fatalf("add ended with %v, want an error that mentions image_minutes", err)
	}
	images := h.settled("slow:1")
	if len(images) != 1 || images[0].State != wire.StateFailed ||
		!strings.Contains(images[0].Error, "took longer than") {
		t.Fatalf("images %+v, want one failed image with the reason that it took too long", images)
	}
	h.stop()
	again := runHub(t, openHub(t, c)) // with as much time as usual
	if images := again.settled("slow:1"); len(images) != 1 || images[0].State != wire.StateFailed {
		t.Errorf("after a restart: %+v, want it still failed", images)
	}
	again.pushReady("next:1", image(lowerTar))
}

// stuck replaces a file by a pipe, so readers that open it wait until release is called. release
// puts the file back, and returns when done returns true.
func stuck(t *testing.T, file string) (release func(done func() bool)) {
	t.Helper()
	aside, fifo := file+".aside", file+".fifo"
	if err := errors.Join(os.Rename(file, aside), syscall.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	restored := false
	release = func(done func() bool) {
		if !restored {
			restored = true
			if err := errors.Join(os.Rename(file, fifo), os.Rename(aside, file)); err != nil {
				t.Error(err)
			}
		}
		for !done() {
			if writer, err := os.OpenFile(fifo, os.O_RDWR, 0); err == nil { // lets waiting readers open the pipe
				time.Sleep(5 * time.Millisecond)
				writer.Close() // they read nothing
			}
		}
	}
	t.Cleanup(func() {
		end := time.Now().Add(time.Second)
		release(func() bool { return time.Now().After(end) })
	})
	return release
}

// get requests a path, and sends the response without its body.
func (h *testHub) get(path string, statuses chan<- *http.Response) {
	res, err := http.Get(h.url + path)
	if err != nil {
		h.t.Error(err)
		res = &http.Response{}
	} else {
		res.Body.Close()
	}
	statuses <- res
}

// Requests that show traces and requests that report traces have separate bounds.
func TestTracesAreAcceptedWhileOthersAreShown(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	m := h.extents(h.pushReady("a:1", image(startsTar(10))).Tree)
	id, err := h.Catalog().Starts.Locations(t.Context(), m.ID())
	if err != nil {
		t.Fatal(err)
	}
	release := stuck(t, filepath.Join(objectsDir(h.config), objects.LocationsKey(id)))
	const readers = 8
	answers := make(chan *http.Response, readers)
	for range readers {
		go h.get("/lighter/1/default/traces?name=a:1", answers)
	}
	first := <-answers // arrives when the requests have filled the bound for a while
	if first.StatusCode != http.StatusServiceUnavailable || first.Header.Get("Retry-After") == "" {
		t.Errorf("a request beyond the bound: %s, %v, want 503 with Retry-After", first.Status, first.Header)
	}
	all := filesOf(t, m)
	body := trace.Trace{Tree: m.ID(), Reads: all[:2]}.Encode()
	if status, said, _ := h.do("POST", "/lighter/1/default/traces/"+m.ID().String(),
		body); status != http.StatusNoContent {
		t.Errorf("a trace meanwhile: %d %s, want 204", status, said)
	}
	release(func() bool { return len(answers) == readers-1 })
}

// Open connections are bounded. A further connection waits until another one is closed.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	next := openHub(t, hubConfig(t))
	next.SetMaxConnections(2)
	h := runHub(t, next)
	address := strings.TrimPrefix(h.url, "http://")
	ask := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	answered := func(conn net.Conn, within time.Duration) error {
		if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		_, err := bufio.NewReader(conn).ReadString('\n')
		return err
	}
	first := ask()
	for _, conn := range []net.Conn{first, ask()} {
		if err := answered(conn, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	third := ask()
	if err := answered(third, 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one connection more: %v, want it to wait", err)
	}
	first.Close()
	if err := answered(third, time.Minute); err != nil {
		t.Errorf("after another one was closed: %v, want an answer", err)
	}
}

// A bounded number of requests for trees wait for their turn; further ones get 503. Images are
// ingested meanwhile.
func TestRequestsForTreesAreBounded(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	const all = 40
	var layers [][]byte
	for i := range all {
		layers = append(layers, tarball.Of(tarball.File(fmt.Sprint("f", i), "")))
	}
	h.pushReady("a:1", image(layers...))
	var diffIDs []digest.Digest
	for _, l := range layers {
		diffIDs = append(diffIDs, digest.FromBytes(l))
	}
	release := stuck(t, filepath.Join(objectsDir(h.config), objects.LayerKey(diffIDs[0].String())))
	answers := make(chan *http.Response, all)
	asked := 0
	for _, chain := range identity.ChainIDs(diffIDs)[:all-1] {
		asked++
		go h.get("/lighter/1/default/trees/"+chain.String(), answers)
	}
	for range asked - 32 {
		select {
		case res := <-answers:
			if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") != "" {
				t.Errorf("a request beyond the bound: %s, %v, want 503", res.Status, res.Header)
			}
		case <-time.After(time.Minute):
			t.Fatal("all requests wait, want some refused")
		}
	}
	release(func() bool { return len(answers) == 32 })
}

// A tree that was made on request stays while a node holds it, however many of them there are. It
// serves the node after its image was removed, too.
func TestHeldDerivedTreesStay(t *testing.T) {
	t.Parallel()
	next := openHub(t, hubConfig(t))
	next.Trees().MaxDerived = 1
	h := runHub(t, next)
	layers := [][]byte{layer(1), layer(2), layer(3), layer(4), layer(5)}
	var diffIDs []digest.Digest
	for _, l := range layers {
		diffIDs = append(diffIDs, digest.FromBytes(l))
	}
	h.pushReady("a:1", image(layers...))
	chains := identity.ChainIDs(diffIDs)
	node := strings.Repeat("7", 32)
	var held []chunk.ID
	for _, chain := range chains[:2] {
		h.fetchTree(chain.String())
		statement, err := h.Catalog().Statement(t.Context(), chain.String())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, statement.Tree)
		if unknown := h.report(node, held...); len(unknown) > 0 {
			t.Fatalf("the hub does not know the trees %v, which it has just made", unknown)
		}
	}
	for _, chain := range chains[2:4] { // beyond the bound
		h.fetchTree(chain.String())
	}
	h.remove("a:1")
	h.collect(0)
	for i, tree := range held {
		if err := readTree(t, h.origins(), tree, true); err != nil {
			t.Errorf("held tree %d of the removed image: %v", i, err)
		}
	}
	if err := h.client.ForgetHolder(t.Context(), node[:16]); err != nil {
		t.Fatal(err)
	}
	h.collect(0)
	if left := files(t, filepath.Join(objectsDir(h.config), "indexes")); len(left) > 0 {
		t.Errorf("without the node, the indexes %v are left, want none", left)
	}
}

// Trees of chains that are not the top of an image are made on request. The most recently used ones
// are kept, up to a bound. Others are made again on request.
func TestDerivedTreesAreBounded(t *testing.T) {
	t.Parallel()
	next := openHub(t, hubConfig(t))
	next.Trees().MaxDerived = 3
	h := runHub(t, next)
	const all = 8
	var layers [][]byte
	var diffIDs []digest.Digest
	for i := range all {
		layers = append(layers, tarball.Of(tarball.File(fmt.Sprint("f", i), noise(uint64(i), 10_000))))
		diffIDs = append(diffIDs, digest.FromBytes(layers[i]))
	}
	top := h.pushReady("a:1", image(layers...))
	before := len(files(t, filepath.Join(objectsDir(h.config), "indexes")))
	chains := identity.ChainIDs(diffIDs)
	for range 2 {
		for _, chain := range chains {
			h.fetchTree(chain.String())
		}
	}
	if n := len(files(t, filepath.Join(objectsDir(h.config), "indexes"))); n != before+3 {
		t.Errorf("%d indexes are kept for the %d chains of an image, want %d", n, all, before+3)
	}
	if problems, err := h.Verifier().Verify(t.Context(), "a:1",
		func(wire.Progress) error { return nil }); err != nil || len(problems) > 0 {
		t.Errorf("verify the image afterwards: %q, %v, want no problems", problems, err)
	}
	h.fetchTree(top.Chain)
	// A tree that becomes the top of an image is kept.
	b := h.pushReady("b:1", image(layers[:2]...))
	for _, chain := range chains {
		h.fetchTree(chain.String())
	}
	h.fetchTree(b.Chain)
	if _, err := h.Catalog().Statement(t.Context(), b.Chain); err != nil {
		t.Error(err)
	}
	if n := len(files(t, filepath.Join(objectsDir(h.config), "indexes"))); n != before+1+3 {
		t.Errorf("%d indexes are kept for the %d chains of two images, want %d", n, all, before+1+3)
	}
}
