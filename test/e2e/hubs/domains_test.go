//go:build e2e

package hubs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/wire"
)

// withTeam configures a domain "team" with the repositories team/**.
const withTeam = `[[domain]]
name = "team"
repositories = ["team/**"]
`

// inDefault are the flags that make a command use the default domain, at a site whose commands
// otherwise use another domain.
var inDefault = []string{"--domain", wire.DefaultDomain}

// stored returns the keys of the objects in a directory. A key is the object's path below dir.
func stored(t *testing.T, dir string) (keys []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "bucket.lock" {
			keys = append(keys, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// pathsOf returns the paths, below a domain's path, at which a hub serves the packs and indexes
// with the given keys, and an image's manifest, chain, statement and locations.
func pathsOf(keys []string, i wire.Image) []string {
	paths := []string{"manifests/" + i.Digest, "chains/" + i.Chain, "trees/" + i.Chain, "locations/" + i.Tree}
	for _, key := range keys {
		kind, name, _ := strings.Cut(strings.TrimSuffix(key, ".zst"), "/")
		switch kind {
		case "packs":
			paths = append(paths, "packs/"+name+"/0")
		case "indexes":
			paths = append(paths, "indexes/"+name)
		}
	}
	return paths
}

// onlyIn fails the test unless the hub at the URL hub serves a path in the domain own, and answers
// 404 in the domain other.
func onlyIn(t *testing.T, hub, path, own, other string) {
	t.Helper()
	for domain, want := range map[string]int{own: http.StatusOK, other: http.StatusNotFound} {
		res, err := http.Get(hub + wire.Prefix + "/" + domain + "/" + path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, res.Body) // the proxy logs a request whose answer has been sent
		if err := errors.Join(err, res.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != want || want == http.StatusNotFound && res.Header.Get(wire.MissingHeader) == "" {
			t.Errorf("%s in domain %s: %s, header %s %q; want %d, and a 404 only with this header", path, domain,
				res.Status, wire.MissingHeader, res.Header.Get(wire.MissingHeader), want)
		}
	}
}

// A node uses the domain "team", and a mount on the same machine uses the domain "default". Both
// domains have the same image, and share nothing: what one domain has cannot be read through the
// other domain. When an image is removed and collected in one domain, containers and mounts of the
// other domain read on. The node pulls, records, prefetches and reports in its own domain only.
func TestNodeOfADomain(t *testing.T) {
	s := start(t, site.Options{Domain: "team", Hubs: []string{site.ProxyURL}},
		fmt.Sprintf("registry_hosts = [%q]\n", site.ProxyAddress)+collectsAtOnce+withTeam)
	s.SetNodeArgs("--held-delay", "1s") // without --record=false: the node records starts
	proxy := startProxy(t, s, s.Hub)
	keyOf := func(domain string) string {
		t.Helper()
		return strings.TrimSpace(runLighter(t, s, "hub", "key", "show", "--root", s.Hub.Root, "--domain", domain))
	}
	defaultKey := keyOf(wire.DefaultDomain)
	if keyOf("team") != s.Hub.Key || defaultKey == s.Hub.Key {
		t.Errorf("key of the domain team: %q, want %q, which the node has pinned; key of the default domain: %q, "+
			"want another key", keyOf("team"), s.Hub.Key, defaultKey)
	}
	objects, teamObjects := filepath.Join(s.Hub.Root, "objects"), filepath.Join(s.Hub.Root, "domains/team/objects")
	pushDefault := func(layout, name string) {
		t.Helper()
		startPush(t, layout, name)
		eventually.Holds(t, name+" to be ready", func() bool { return isReady(t, s.Hub, name+":latest", inDefault...) })
	}

	// Each domain ingests the image by itself, and does not have the other domain's objects.
	layout := image(t, 0, 12)
	push(t, s.Hub, layout, "team/app")
	if before := stored(t, objects); len(before) > 0 {
		t.Errorf("after a push to the domain team, the default domain has the objects %v, want none", before)
	}
	pushDefault(layout, "app")
	for _, key := range stored(t, objects) {
		info, err := os.Stat(filepath.Join(objects, key))
		teamInfo, teamErr := os.Stat(filepath.Join(teamObjects, key))
		if err != nil || teamErr == nil && os.SameFile(info, teamInfo) {
			t.Errorf("the object %s is one file for both domains, or its file cannot be found: %v", key, err)
		}
	}
	pushDefault(image(t, 20, 22), "secret")
	push(t, s.Hub, image(t, 30, 32), "team/own")
	imageOf := func(name string, flags ...string) wire.Image {
		t.Helper()
		all := hubJSON[[]wire.Image](t, s.Hub, "images", flags...)
		return all[slices.IndexFunc(all, func(i wire.Image) bool { return i.Name == name })]
	}
	without := func(all, others []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(key string) bool { return slices.Contains(others, key) })
	}
	// A pack is named by the digest of its bytes, so the packs of the image app have the same keys
	// in both domains. The function without leaves such keys out.
	teamKeys := stored(t, teamObjects)
	for _, path := range pathsOf(without(stored(t, objects), teamKeys), imageOf("secret:latest", inDefault...)) {
		onlyIn(t, site.ProxyURL, path, wire.DefaultDomain, "team")
	}
	for _, path := range pathsOf(without(teamKeys, stored(t, objects)), imageOf("team/own:latest")) {
		onlyIn(t, site.ProxyURL, path, "team", wire.DefaultDomain)
	}

	// The node reads, records and prefetches in the domain team only. The proxy logs a request when
	// its answer has been sent, so the count waits until the proxy has logged one more request.
	const last = wire.Prefix + "/" + wire.DefaultDomain + "/last"
	res, err := http.Get(site.ProxyURL + last)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	eventually.Holds(t, "the proxy's line about the last request", func() bool {
		return len(lines(t, proxy.Log, last)) == 1
	})
	defaultRequests := len(lines(t, proxy.Log, "/lighter/1/default/"))
	ref := balanced("team/app")
	c := run(t, s, ref)
	reads(t, c, 0, 4)
	if st := sitetest.Status(t, s); st.Domain != "team" {
		t.Errorf("the domain in the node's status: %q, want team", st.Domain)
	}
	holder(t, s.Hub, "one tree", func(h wire.Holder) bool { return h.Trees == 1 })
	if others := hubJSON[[]wire.Holder](t, s.Hub, "holders", inDefault...); len(others) > 0 {
		t.Errorf("holders in the default domain: %+v, want none", others)
	}
	secret := balanced("secret")
	if _, err := s.Machine.Pull(t.Context(), site.Lighter, secret); err != nil {
		t.Errorf("pull an image that only the default domain has: %v", err)
	}
	for _, i := range sitetest.Status(t, s).Images {
		if i.Image == secret && i.Lazy {
			t.Errorf("an image that only the default domain has is lazy: %s", i.Why)
		}
	}
	if err := s.Machine.RemoveImage(t.Context(), secret); err != nil {
		t.Fatal(err)
	}

	// The chunks that the start has read become a startup pack. The next start fetches it.
	eventually.Holds(t, "a startup pack of the recorded start", func() bool {
		shown := hubJSON[[]wire.Starts](t, s.Hub, "trace show", "team/app:latest")
		return len(shown) == 1 && len(shown[0].Workloads) == 1 && len(shown[0].Workloads[0].Packs) > 0
	})
	others := hubJSON[[]wire.Starts](t, s.Hub, "trace show", append(inDefault, "app:latest")...)
	if len(others) != 1 || len(others[0].Workloads) > 0 {
		t.Errorf("starts of the image in the default domain: %+v, want the image, without a workload", others)
	}
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	awaitTrees := func(trees int64) {
		t.Helper()
		holder(t, s.Hub, fmt.Sprint(trees, " trees"), func(h wire.Holder) bool { return h.Trees == trees })
	}
	awaitTrees(0)
	forget(t, s)
	fetched := sitetest.Status(t, s).Ahead.Startup.Fetched
	c = run(t, s, ref)
	eventually.Holds(t, "the node to fetch the startup pack", func() bool {
		return sitetest.Status(t, s).Ahead.Startup.Fetched >= fetched+4*fileBytes
	})
	reads(t, c, 0, 4)
	awaitTrees(1)

	// The image is removed from the default domain, and then from the domain team, while the node
	// has it.
	hubCommand(t, s.Hub, "rm", append(inDefault, "app:latest")...)
	if done := hubJSON[wire.Collection](t, s.Hub, "gc --wait", inDefault...); done.Trees != 1 {
		t.Errorf("the collection in the default domain: %+v, want one tree freed", done)
	}
	reads(t, c, 4, 6)
	hubCommand(t, s.Hub, "rm", "team/app:latest")
	if done := collect(t, s.Hub); done.Layers > 0 || done.Packs > 0 {
		t.Errorf("the collection while the node holds the image: %+v, want no layer record and no pack freed", done)
	}
	reads(t, c, 6, 8)
	forget(t, s)
	reads(t, c, 0, 12)

	for _, kind := range []string{"packs", "indexes", "traces", "held"} {
		if len(lines(t, proxy.Log, "/lighter/1/team/"+kind)) == 0 {
			t.Errorf("the node has made no request for %s in the domain team, want some", kind)
		}
	}
	if n := len(lines(t, proxy.Log, "/lighter/1/default/")); n != defaultRequests {
		t.Errorf("the node has made %d requests in the default domain, want none", n-defaultRequests)
	}

	// The image is pushed to the default domain again. Once the node has removed its image, a
	// collection empties the domain team, and the default domain still has all of the image.
	pushDefault(layout, "app")
	if dir, err := tryMount(t, s, site.ProxyURL, s.Hub.Key, "app:latest"); err == nil {
		t.Errorf("an image of the default domain was mounted on %s with the key of the domain team, want an error", dir)
	}
	if dir, err := tryMount(t, s, site.ProxyURL, defaultKey, "app:latest", "--domain", "team"); err == nil {
		t.Errorf("an image that only the default domain has was mounted on %s in the domain team, want an error", dir)
	}
	dir := mount(t, s, site.ProxyURL, defaultKey, "app:latest")
	readsMount(t, dir, 0, 4)
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	hubCommand(t, s.Hub, "rm", "team/own:latest")
	awaitTrees(0)
	collect(t, s.Hub)
	if left := stored(t, teamObjects); len(left) > 0 {
		t.Errorf("objects of the domain team after its last collection: %v, want none", left)
	}
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	readsMount(t, dir, 0, 12)
	for _, flags := range [][]string{nil, inDefault} {
		hubCommand(t, s.Hub, "fsck", append(flags, "--deep")...)
	}
}

// runLighter runs a lighter command on the machine, and returns its output. The command must
// succeed.
func runLighter(t *testing.T, s *site.Site, args ...string) string {
	t.Helper()
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Machine.Command(t.Context(), append([]string{lighter}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// mount mounts an image of a hub on the machine until the test ends. The mount has a root of its
// own, and does not use the machine's node.
func mount(t *testing.T, s *site.Site, hub, key, name string, flags ...string) (dir string) {
	t.Helper()
	dir, err := tryMount(t, s, hub, key, name, flags...)
	if err != nil {
		t.Fatalf("mount %s: %v", name, err)
	}
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := s.Machine.Command(ctx, lighter, "unmount", "--root", s.Machine.NodeRoot(), dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// tryMount mounts an image of a hub on a new directory on the machine, as mount does, and returns
// the error of `lighter mount`.
func tryMount(t *testing.T, s *site.Site, hub, key, name string, flags ...string) (dir string, err error) {
	t.Helper()
	lighter, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	argv := append([]string{lighter, "mount", "--root", t.TempDir(), "--hub", hub, "--hub-key", key, "--plain-http"},
		flags...)
	_, err = s.Machine.Command(t.Context(), append(argv, name, dir)...)
	return dir, err
}

// readsMount fails the test unless the mount on dir has the right bytes in the files first to end-1
// of the directory data.
func readsMount(t *testing.T, dir string, first, end int) {
	t.Helper()
	for n := first; n < end; n++ {
		got, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("data/%03d", n)))
		if err != nil || !slices.Equal(got, content(n)) {
			t.Errorf("file %d: got %d bytes (%v), want the %d bytes of content(%d)", n, len(got), err, fileBytes, n)
		}
	}
}
