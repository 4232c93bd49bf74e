//go:build e2e

package hubs

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/wire"
)

// startProxy starts a proxy, with the URL site.ProxyURL, in front of the processes of a hub. Then
// it restarts the node.
func startProxy(t *testing.T, s *site.Site, processes ...*site.Hub) *site.Proxy {
	t.Helper()
	proxy, err := s.StartProxy(t.Context(), processes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	// The node has started before the proxy, so its first report may have failed. The node would
	// repeat the report only after a minute or two.
	if err := s.Machine.RestartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	return proxy
}

// An image is removed from the hub while a node has it. The node's reports reach the hub through a
// caching proxy. The container reads chunks that it has not read before, also after the node's
// restart. The image cannot be mounted by its name any more. Once the node has removed the image,
// too, the next collection frees all of it.
func TestRemovedImageIsHeld(t *testing.T) {
	s := start(t, site.Options{Hubs: []string{site.ProxyURL}}, collectsAtOnce)
	proxy := startProxy(t, s, s.Hub)
	add(t, s, image(t, 0, 12), "held")
	c := run(t, s, site.Reference("held"))
	reads(t, c, 0, 4)
	reported := holder(t, s.Hub, "one tree", func(h wire.Holder) bool { return h.Trees == 1 })
	if len(lines(t, proxy.Log, "POST", "/held", " 200 ")) == 0 {
		t.Error("the proxy's log has no report that the hub has answered with 200")
	}
	if found := hubJSON[[]wire.Holder](t, s.Hub, "holders", "held:latest"); len(found) != 1 ||
		found[0].ID != reported.ID {
		t.Errorf("holders of the image: %+v, want only %+v", found, reported)
	}

	hubCommand(t, s.Hub, "rm", "held:latest")
	if done := collect(t, s.Hub); done.Trees != 0 || done.Packs != 0 {
		t.Errorf("a collection while the node holds the image: %+v, want no tree and no pack freed", done)
	}
	reads(t, c, 4, 8)
	if err := s.Machine.RestartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	holder(t, s.Hub, "a later report",
		func(h wire.Holder) bool { return h.ID == reported.ID && h.Seen.After(reported.Seen) })
	collect(t, s.Hub)
	reads(t, c, 8, 12)
	forget(t, s)
	reads(t, c, 0, 12)

	if listed := hubJSON[[]wire.Image](t, s.Hub, "images"); len(listed) != 0 {
		t.Errorf("the hub lists the images %+v, want none", listed)
	}
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Machine.Command(t.Context(), lighter, "mount", "--root", t.TempDir(), "--hub", site.ProxyURL,
		"--hub-key", s.Hub.Key, "--plain-http", "held:latest", t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "held:latest") {
		t.Errorf("another node mounts the removed image: %v, want an error that names the image", err)
	}

	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.RemoveImage(t.Context(), site.Reference("held")); err != nil {
		t.Fatal(err)
	}
	holder(t, s.Hub, "no tree", func(h wire.Holder) bool { return h.Trees == 0 })
	if done := collect(t, s.Hub); done.Trees != 1 {
		t.Errorf("the collection after the last holder has removed the image: %+v, want one tree freed", done)
	}
	objects, err := filepath.Glob(filepath.Join(s.Hub.Root, "objects", "*", "*"))
	if err != nil || len(objects) > 0 {
		t.Errorf("objects after the last collection: %v (%v), want none", objects, err)
	}
	// A pull now gets the image as an ordinary image, because the hub does not know it.
	if _, err := s.Machine.Pull(t.Context(), site.Lighter, site.Reference("held")); err != nil {
		t.Error(err)
	}
	for _, i := range sitetest.Status(t, s).Images {
		if i.Lazy {
			t.Errorf("an image that the hub has freed is lazy: %+v", i)
		}
	}
}

// A node comes back 38 days after its last report. By then the report does not count any more (a
// week), and the grace period after it (30 days) is over. The node's image was removed and
// collected meanwhile. The container reads cached chunks. Reads of other chunks fail with an
// input/output error, and log, status and doctor say why.
func TestNodeComesBackTooLate(t *testing.T) {
	url := database.Database(t)
	options := site.Options{NodeArgs: []string{"--prefetch=false"}} // only reads fetch chunks
	s := start(t, options, fmt.Sprintf("catalog = %q\nbucket = %q\n", url, newBucket(t))+collectsAtOnce)
	add(t, s, image(t, 0, 4), "late")
	c := run(t, s, site.Reference("late"))
	reads(t, c, 0, 2)
	holder(t, s.Hub, "one tree", func(h wire.Holder) bool { return h.Trees == 1 })
	if err := s.Machine.StopNode(); err != nil {
		t.Fatal(err)
	}
	hubCommand(t, s.Hub, "rm", "late:latest")
	database.Execute(t, url, "UPDATE holders SET seen = seen - 36::BIGINT * 86400000")
	s.Hub.Kill()
	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := collect(t, s.Hub); done.Trees != 0 {
		t.Errorf("the collection 36 days after the report, in the grace period: %+v, want no tree freed", done)
	}
	database.Execute(t, url, "UPDATE holders SET seen = seen - 2::BIGINT * 86400000")
	s.Hub.Kill()
	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := collect(t, s.Hub); done.Trees != 1 {
		t.Errorf("the collection 38 days after the report: %+v, want one tree freed", done)
	}

	if err := s.Machine.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.Reconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	reads(t, c, 0, 2)
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := read(t, c, 2, 4); err == nil || !strings.Contains(err.Error(), "Input/output error") {
		t.Errorf("a read of chunks that no hub has any more: %v, want an input/output error", err)
	}
	t.Logf("the read has failed after %v", time.Since(began))
	const remedy = "pull the image again"
	if len(lines(t, s.Machine.NodeLog(), remedy)) == 0 {
		t.Errorf("the node's log has no line with %q", remedy)
	}
	const why = "no hub has it any more"
	eventually.Holds(t, "a lost tree in the status", func() bool { return len(sitetest.Status(t, s).Lost) == 1 })
	if lost := sitetest.Status(t, s).Lost[0]; !strings.Contains(lost.Cause, why) || len(lost.Images) != 1 ||
		!strings.Contains(lost.Images[0], "late") {
		t.Errorf("the lost tree in the status: %+v, want the image late and the cause %q", lost, why)
	}
	out, err := s.Machine.Lighter(t.Context(), "doctor", "--plain-http", "--hub", s.Hub.URL, "--hub-key", s.Hub.Key)
	if err == nil || !strings.Contains(out, why) {
		t.Errorf("the doctor says\n%s (%v)\nwant a problem with %q", out, err, why)
	}
}
