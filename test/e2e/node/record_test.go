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
	"lighter/test/testkit/site"
)

// reports collects the traces of starts that nodes report to the hub.
type reports struct {
	mu     sync.Mutex
	bodies map[string][]string // by tree
	header http.Header         // of the last request
}

// listen records a request and lets the proxy forward it to the hub.
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

func (s *reports) of(tree chunk.ID) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bodies[tree.String()]
}

// heardSite is startSite with a proxy that records the reports to the hub.
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
// containerd may already have collected it.
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
// start with a warm page cache is not reported.
func TestStartsAreRecorded(t *testing.T) {
	s, heard := heardSite(t)
	// A view is not a start. A container that ends at once is one.
	pull(t, s, "base")
	for _, image := range nodeStatus(t, s).Images {
		if image.Image == site.Reference("base") {
			look(t, s, image.Chain)
		}
	}
	if st := nodeStatus(t, s); st.Recording.Active != 0 || len(st.Mounts) != 1 {
		t.Errorf("a view is recorded: %+v, %d mounts", st.Recording, len(st.Mounts))
	}
	greet(t, s, "base")
	if err := s.Machine.RemoveImage(t.Context(), site.Reference("base")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first report", func() bool { return recording(t, s).Reported == 1 })

	pull(t, s, "python")
	if r := recording(t, s); !r.On || r.Active != 0 {
		t.Errorf("before a start: %+v", r)
	}
	python := func() {
		t.Helper()
		if ran, err := s.Machine.Run(t.Context(), site.Lighter, site.Reference("python"), "python3", "-c",
			"print(6 * 7)"); err != nil || ran.Output != "42\n" {
			t.Fatalf("%q, %v", ran.Output, err)
		}
	}
	python()
	if r := recording(t, s); r.Active != 1 || r.Recorded != 1 {
		t.Errorf("after a start: %+v", r)
	}
	eventually(t, "the report", func() bool { return recording(t, s).Reported == 2 })
	m := nodeStatus(t, s).Mounts[0]
	if heard := heard.of(m.Tree); len(heard) != 1 {
		t.Fatalf("the hub got %d reports", len(heard))
	}
	got, err := trace.Decode([]byte(heard.of(m.Tree)[0]), m.Tree, 1<<40) // Decode accepts only ranges and times
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, r := range got.Reads {
		sum += r.Length
	}
	// A range that was read twice is in the trace once. Concurrent tests drop the page cache of the
	// whole host.
	if sum == 0 || sum > m.Device.Bytes || sum < m.Device.Bytes/2 {
		t.Errorf("the trace has %d bytes, the start read %d", sum, m.Device.Bytes)
	}
	for name := range heard.header {
		if !slices.Contains([]string{"Accept", "Accept-Encoding", "Content-Length", "Content-Type", "User-Agent"},
			name) {
			t.Errorf("the hub got another report: %s", name)
		}
	}
	python()
	if r := recording(t, s); r.Active != 0 || r.Recorded != 2 {
		t.Errorf("a warm start was recorded: %+v", r)
	}

	// A daemon that is killed loses its recording, and the next one does not report a part of it.
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
		t.Errorf("a recording of the previous daemon continues: %+v", r)
	}

	// Without a hub nothing is reported, and everything else works.
	forget := func(image string) {
		t.Helper()
		if err := s.Machine.RemoveImage(t.Context(), site.Reference(image)); err != nil {
			t.Fatal(err)
		}
	}
	forget("python") // which extends base
	forget("base")
	pull(t, s, "base")
	s.Hub.Kill()
	greet(t, s, "base")
	forget("base")
	if r := recording(t, s); r.Recorded != 1 || r.Reported != 0 {
		t.Errorf("without a hub: %+v", r)
	}
}

// `lighter trace record` records reads of a running image, also if automatic recording is off.
func TestTraceRecord(t *testing.T) {
	s, heard := heardSite(t)
	s.SetNodeArgs("--record=false")
	restart(t, s)
	for _, image := range []string{"base", "python"} {
		pull(t, s, image)
		greet(t, s, image)
	}
	if r := recording(t, s); r.On || r.Active != 0 {
		t.Errorf("recording is off: %+v", r)
	}
	file := filepath.Join(t.TempDir(), "python.trace")
	type said struct {
		text string
		err  error
	}
	record := func(args ...string) chan said {
		ended := make(chan said, 1)
		go func() {
			text, err := s.Machine.Command(t.Context(),
				append([]string{lighter, "trace", "record", "--root", s.Machine.NodeRoot()}, args...)...)
			ended <- said{text, err}
		}()
		return ended
	}
	toFile, toHub := record("--output", file, site.Reference("python")), record("--json", "base:latest")
	eventually(t, "recording", func() bool { return recording(t, s).Active == 2 })
	if again := <-record("base:latest"); again.err == nil ||
		!strings.Contains(again.err.Error(), "already being recorded") {
		t.Errorf("a second recording at the same time: %v, want an error", again)
	}
	for _, image := range []string{"base", "python"} {
		greet(t, s, image)
	}
	if one := <-toHub; one.err != nil || !strings.Contains(one.text, `"sent": true`) {
		t.Errorf("%q, %v", one.text, one.err)
	}
	if one := <-toFile; one.err != nil || !strings.Contains(one.text, file) {
		t.Fatalf("%q, %v", one.text, one.err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	recordings, err := trace.ParseText(text)
	if err != nil || len(recordings) != 1 || !strings.Contains(string(text), "/libc.so.6 ") {
		t.Errorf("%v\n%s", err, text)
	}
	if _, err := s.Machine.Command(t.Context(), lighter, "trace", "import", "--hub", s.Hub.URL, "--plain-http",
		"python", file); err != nil {
		t.Errorf("the hub refuses the recorded trace: %v", err)
	}
	for _, m := range nodeStatus(t, s).Mounts {
		if n := len(heard.of(m.Tree)); n > 0 {
			if n != 1 {
				t.Errorf("the hub got %d reports", n)
			}
			return
		}
	}
	t.Error("the hub got no report")
}
