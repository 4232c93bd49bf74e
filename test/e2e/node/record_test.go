//go:build e2e

package node

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/node/report"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
)

// reports has the traces that nodes have reported to the hub.
type reports struct {
	mu     sync.Mutex
	bodies map[string][]string // of the requests, by tree ID
	header http.Header         // of the last request with a trace
}

// listen remembers a request with a trace. It lets the proxy forward all requests to the hub.
func (s *reports) listen(_ http.ResponseWriter, req *http.Request) (answered bool) {
	if req.Method != http.MethodPost || path.Base(path.Dir(req.URL.Path)) != "traces" {
		return false
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return false
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	s.mu.Lock()
	defer s.mu.Unlock()
	tree := path.Base(req.URL.RequestURI()) // with a query, if there is one
	s.bodies[tree] = append(s.bodies[tree], string(body))
	s.header = req.Header.Clone()
	return false
}

// of returns the bodies of the reports about a tree.
func (s *reports) of(tree chunk.ID) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bodies[tree.String()]
}

// heardSite starts a site whose hub has both images. The node reaches the hub through a proxy that
// remembers the reported traces.
func heardSite(t *testing.T) (*site.Site, *reports) {
	t.Helper()
	heard := &reports{bodies: map[string][]string{}}
	address, end, err := site.Intercept(heard.listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return startSiteWith(t, site.Options{Hubs: []string{address}}, "base", "python"), heard
}

// look makes a view of a chain and removes it, like an image scanner. The view has no lease, so
// containerd's garbage collection may remove it first.
func look(t *testing.T, s *site.Site, chain string) {
	t.Helper()
	snapshots := func(args ...string) error {
		_, err := s.Machine.Ctr(t.Context(), append([]string{"snapshots", "--snapshotter", site.Lighter}, args...)...)
		return err
	}
	if err := snapshots("view", "look", chain); err != nil {
		t.Fatal(err)
	}
	if err := snapshots("rm", "look"); err != nil && !strings.Contains(err.Error(), "look does not exist") {
		t.Fatal(err)
	}
}

func recording(t *testing.T, s *site.Site) report.Recording {
	t.Helper()
	return nodeStatus(t, s).Recording
}

// The first start of an image is reported to the hub: the ranges that it reads, and nothing else. A
// start with a warm page cache is not recorded.
func TestStartsAreRecorded(t *testing.T) {
	s, heard := heardSite(t)
	// A view is not a start. A container is a start, even if it ends at once.
	pull(t, s, "base")
	for _, image := range nodeStatus(t, s).Images {
		if image.Image == site.Reference("base") {
			look(t, s, image.Chain)
		}
	}
	if st := nodeStatus(t, s); st.Recording.Active != 0 || len(st.Mounts) != 1 {
		t.Errorf("a view: %+v, %d mounts; want no recording, one mount", st.Recording, len(st.Mounts))
	}
	greet(t, s, "base")
	if err := s.Machine.RemoveImage(t.Context(), site.Reference("base")); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the report about base", func() bool { return recording(t, s).Reported == 1 })

	pull(t, s, "python")
	if r := recording(t, s); !r.On || r.Active != 0 {
		t.Errorf("before a start: %+v, want no recording in progress", r)
	}
	python := func() {
		t.Helper()
		if ran, err := s.Machine.Run(t.Context(), site.Lighter, site.Reference("python"), "python3", "-c",
			"print(6 * 7)"); err != nil || ran.Output != "42\n" {
			t.Fatalf("python3 printed %q (%v), want %q", ran.Output, err, "42\n")
		}
	}
	python()
	if r := recording(t, s); r.Active != 1 || r.Recorded != 1 {
		t.Errorf("after a start: %+v, want one recording in progress, one ended", r)
	}
	eventually.Holds(t, "the report about python", func() bool { return recording(t, s).Reported == 2 })
	m := nodeStatus(t, s).Mounts[0]
	bodies := heard.of(m.Tree)
	if len(bodies) != 1 {
		t.Fatalf("the hub got %d reports about python, want 1", len(bodies))
	}
	got, err := trace.Decode([]byte(bodies[0]), m.Tree, 1<<40) // Decode accepts only ranges and times
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, r := range got.Reads {
		sum += r.Length
	}
	// Concurrent tests drop the page cache of the whole host, so the start may read a range twice.
	// The trace has each range once.
	if sum == 0 || sum > m.Device.Bytes || sum < m.Device.Bytes/2 {
		t.Errorf("the trace has %d bytes, want at most %d and at least half of that", sum, m.Device.Bytes)
	}
	for name := range heard.header {
		if !slices.Contains([]string{"Accept", "Accept-Encoding", "Content-Length", "Content-Type", "User-Agent"},
			name) {
			t.Errorf("the report has an unexpected header: %s", name)
		}
	}
	python()
	if r := recording(t, s); r.Active != 0 || r.Recorded != 2 {
		t.Errorf("after a start with a warm page cache: %+v, want 2 recordings as before", r)
	}

	// A daemon that is killed loses its recording. The next daemon reports no part of it.
	pull(t, s, "base")
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("base"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	restart(t, s)
	greet(t, s, "base")
	if err := c.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if r := recording(t, s); r.Active != 0 || r.Recorded != 0 {
		t.Errorf("after a restart: %+v, want no recording", r)
	}

	// Without a hub nothing is reported, and everything else works.
	remove := func(image string) {
		t.Helper()
		if err := s.Machine.RemoveImage(t.Context(), site.Reference(image)); err != nil {
			t.Fatal(err)
		}
	}
	remove("python") // first, because it extends base
	remove("base")
	pull(t, s, "base")
	s.Hub.Kill()
	greet(t, s, "base")
	remove("base")
	if r := recording(t, s); r.Recorded != 1 || r.Reported != 0 {
		t.Errorf("without a hub: %+v, want one recording and no report", r)
	}
}

// `lighter trace record` records the next start of an image, even if the image was started before
// and automatic recording is off. It sends the trace to the hub, or writes it to a file.
func TestTraceRecord(t *testing.T) {
	s, heard := heardSite(t)
	s.SetNodeArgs("--record=false")
	restart(t, s)
	for _, image := range []string{"base", "python"} {
		pull(t, s, image)
		greet(t, s, image)
	}
	if r := recording(t, s); r.On || r.Active != 0 {
		t.Errorf("with --record=false: %+v, want no recording", r)
	}
	file := filepath.Join(t.TempDir(), "python.trace")
	type printed struct {
		text string
		err  error
	}
	record := func(args ...string) chan printed {
		ended := make(chan printed, 1)
		go func() {
			text, err := s.Machine.Command(t.Context(),
				append([]string{lighter, "trace", "record", "--root", s.Machine.NodeRoot()}, args...)...)
			ended <- printed{text, err}
		}()
		return ended
	}
	toFile, toHub := record("--output", file, site.Reference("python")), record("--json", "base:latest")
	eventually.Holds(t, "two active recordings", func() bool { return recording(t, s).Active == 2 })
	if again := <-record("base:latest"); again.err == nil ||
		!strings.Contains(again.err.Error(), "already being recorded") {
		t.Errorf("a second recording at the same time: %v, want an error", again)
	}
	for _, image := range []string{"base", "python"} {
		greet(t, s, image)
	}
	if r := <-toHub; r.err != nil || !strings.Contains(r.text, `"sent": true`) {
		t.Errorf("trace record --json printed %q (%v), want a trace that was sent", r.text, r.err)
	}
	if r := <-toFile; r.err != nil || !strings.Contains(r.text, file) {
		t.Fatalf("trace record --output printed %q (%v), want the file's name", r.text, r.err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	recordings, err := trace.ParseText(text)
	if err != nil || len(recordings) != 1 || !strings.Contains(string(text), "/libc.so.6 ") {
		t.Errorf("the file has %d recordings (%v), want one, with libc.so.6:\n%s", len(recordings), err, text)
	}
	if _, err := s.Machine.Command(t.Context(), lighter, "trace", "import", "--hub", s.Hub.URL, "--plain-http",
		"python", file); err != nil {
		t.Errorf("the hub refuses the recorded trace: %v", err)
	}
	for _, m := range nodeStatus(t, s).Mounts {
		if n := len(heard.of(m.Tree)); n > 0 {
			if n != 1 {
				t.Errorf("the hub got %d reports about base, want 1", n)
			}
			return
		}
	}
	t.Error("the hub got no report, want one about base")
}
