//go:build e2e

package hubs

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/test/testkit/site"
	"lighter/wire"
)

// withTeam configures a domain "team" with the repositories team/**.
const withTeam = `[[domain]]
name = "team"
repositories = ["team/**"]
`

// inDefault are the flags of a command about the default domain, at a site that uses another one.
var inDefault = []string{"--domain", wire.DefaultDomain}

// stored returns the keys of the objects in a directory of them.
func stored(t *testing.T, dir string) (keys []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			keys = append(keys, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// pathsOf returns the paths, below a domain, of the objects with these keys and of an image.
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

// onlyIn fails the test unless a hub answers a path below one domain, and with 404 below another.
func onlyIn(t *testing.T, hub, path, own, other string) {
	t.Helper()
	for domain, want := range map[string]int{own: http.StatusOK, other: http.StatusNotFound} {
		res, err := http.Get(hub + wire.Prefix + "/" + domain + "/" + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want || want == http.StatusNotFound && res.Header.Get(wire.MissingHeader) == "" {
			t.Errorf("%s in domain %s: %s, want %d", path, domain, res.Status, want)
		}
	}
}

// A node reads the domain "team", and a mount on the same machine the domain "default". Both have
// the same image, and share nothing: what one domain has cannot be read through the other, and when
// an image is removed and collected in one, containers and mounts of the other read on. The node
// pulls, records, prefetches, caches and reports in its own domain only.
func TestNodeOfADomain(t *testing.T) {
	s := start(t, site.Options{Domain: "team", Hubs: []string{site.ProxyURL}},
		fmt.Sprintf("registry_hosts = [%q]\n", site.ProxyAddress)+collectsAtOnce+withTeam)
	s.SetNodeArgs("--held-delay", "1s") // starts are recorded
	proxy := startProxy(t, s, s.Hub)
	keyOf := func(domain string) string {
		t.Helper()
		return strings.TrimSpace(runLighter(t, s, "hub", "key", "show", "--root", s.Hub.Root, "--domain", domain))
	}
	defaultKey := keyOf(wire.DefaultDomain)
	if keyOf("team") != s.Hub.Key || defaultKey == s.Hub.Key {
		t.Errorf("keys of the domains: %q and %q, the node has pinned %q", keyOf("team"), defaultKey, s.Hub.Key)
	}
	objects, teamObjects := filepath.Join(s.Hub.Root, "objects"), filepath.Join(s.Hub.Root, "domains/team/objects")
	pushDefault := func(layout, name string) {
		t.Helper()
		copyTo(t, layout, name)
		eventually(t, name+" to be ready", func() bool { return isReady(t, s.Hub, name+":latest", inDefault...) })
	}

	// Each domain ingests the same image by itself, and does not have another one's.
	layout := image(t, 0, 12)
	push(t, s.Hub, layout, "team/app")
	if before := stored(t, objects); len(before) > 0 {
		t.Errorf("after a push to another domain, the default one has %v", before)
	}
	pushDefault(layout, "app")
	for _, key := range stored(t, objects) {
		one, err := os.Stat(filepath.Join(objects, key))
		other, otherErr := os.Stat(filepath.Join(teamObjects, key))
		if err != nil || otherErr == nil && os.SameFile(one, other) {
			t.Errorf("two domains share %s (%v)", key, err)
		}
	}
	pushDefault(image(t, 20, 22), "secret")
	push(t, s.Hub, image(t, 30, 32), "team/own")
	imageOf := func(name string, flags ...string) wire.Image {
		t.Helper()
		all := asked[[]wire.Image](t, s.Hub, "images", flags...)
		return all[slices.IndexFunc(all, func(i wire.Image) bool { return i.Name == name })]
	}
	mine := func(all, others []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(key string) bool { return slices.Contains(others, key) })
	}
	// Packs are named by their bytes: the pack of the same image has the same name in both domains.
	inBoth := stored(t, teamObjects)
	for _, path := range pathsOf(mine(stored(t, objects), inBoth), imageOf("secret:latest", inDefault...)) {
		onlyIn(t, site.ProxyURL, path, wire.DefaultDomain, "team")
	}
	for _, path := range pathsOf(mine(inBoth, stored(t, objects)), imageOf("team/own:latest")) {
		onlyIn(t, site.ProxyURL, path, "team", wire.DefaultDomain)
	}

	// The node reads, records and prefetches in team's domain alone.
	ofDefault := len(lines(t, proxy.Log, "/lighter/1/default/"))
	ref := balanced("team/app")
	c := run(t, s, ref)
	reads(t, c, 0, 4)
	if st := status(t, s); st.Domain != "team" {
		t.Errorf("the node says that its domain is %q", st.Domain)
	}
	holder(t, s.Hub, "one tree", func(h wire.Holder) bool { return h.Trees == 1 })
	if others := asked[[]wire.Holder](t, s.Hub, "holders", inDefault...); len(others) > 0 {
		t.Errorf("holders of the other domain: %+v, want none", others)
	}
	ofOther := balanced("secret")
	if _, err := s.Machine.Pull(t.Context(), site.Lighter, ofOther); err != nil {
		t.Errorf("pull an image of the other domain: %v", err)
	}
	for _, i := range status(t, s).Images {
		if i.Image == ofOther && i.Lazy {
			t.Errorf("the other domain's image is lazy: %s", i.Why)
		}
	}
	if err := s.Machine.RemoveImage(t.Context(), ofOther); err != nil {
		t.Fatal(err)
	}

	// What the start has read becomes a startup pack, which the next start fetches.
	eventually(t, "a recorded start", func() bool {
		shown := asked[[]wire.Starts](t, s.Hub, "trace show", "team/app:latest")
		return len(shown) == 1 && len(shown[0].Workloads) == 1 && len(shown[0].Workloads[0].Packs) > 0
	})
	others := asked[[]wire.Starts](t, s.Hub, "trace show", append(inDefault, "app:latest")...)
	if len(others) != 1 || len(others[0].Workloads) > 0 {
		t.Errorf("starts of the other domain's image: %+v, want none reported", others)
	}
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	holds := func(trees int64) {
		t.Helper()
		holder(t, s.Hub, fmt.Sprint(trees, " trees"), func(h wire.Holder) bool { return h.Trees == trees })
	}
	holds(0)
	forget(t, s)
	fetched := status(t, s).Ahead.Startup.Fetched
	c = run(t, s, ref)
	eventually(t, "startup packs", func() bool { return status(t, s).Ahead.Startup.Fetched >= fetched+4*fileBytes })
	reads(t, c, 0, 4)
	holds(1)

	// The image is removed from the default domain, and then from team's, while the node has it.
	good(t, s.Hub, "rm", append(inDefault, "app:latest")...)
	if done := asked[wire.Collection](t, s.Hub, "gc --wait", inDefault...); done.Trees != 1 {
		t.Errorf("the collection in the default domain: %+v, want a tree", done)
	}
	reads(t, c, 4, 6)
	good(t, s.Hub, "rm", "team/app:latest")
	if done := collect(t, s.Hub); done.Layers > 0 || done.Packs > 0 {
		t.Errorf("the collection of a held image: %+v, want nothing of it freed", done)
	}
	reads(t, c, 6, 8)
	forget(t, s)
	reads(t, c, 0, 12)

	for _, kind := range []string{"packs", "indexes", "traces", "held"} {
		if len(lines(t, proxy.Log, "/lighter/1/team/"+kind)) == 0 {
			t.Errorf("the node has made no request for %s", kind)
		}
	}
	if n := len(lines(t, proxy.Log, "/lighter/1/default/")); n != ofDefault {
		t.Errorf("the node has made %d requests to the other domain", n-ofDefault)
	}

	// The image is pushed to the default domain again. Once the node has removed its image, a
	// collection empties team's domain, and the default domain still has all of the image.
	pushDefault(layout, "app")
	if dir, err := tryMount(t, s, site.ProxyURL, s.Hub.Key, "app:latest"); err == nil {
		t.Errorf("%s has a mount that the key of another domain has signed", dir)
	}
	if dir, err := tryMount(t, s, site.ProxyURL, defaultKey, "app:latest", "--domain", "team"); err == nil {
		t.Errorf("%s has a mount of an image that another domain has", dir)
	}
	dir := mount(t, s, site.ProxyURL, defaultKey, "app:latest")
	readsMount(t, dir, 0, 4)
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	good(t, s.Hub, "rm", "team/own:latest")
	holds(0)
	collect(t, s.Hub)
	if left := stored(t, teamObjects); len(left) > 0 {
		t.Errorf("objects of the node's domain that are left: %v", left)
	}
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	readsMount(t, dir, 0, 12)
	for _, flags := range [][]string{nil, inDefault} {
		good(t, s.Hub, "fsck", append(flags, "--deep")...)
	}
}

// runLighter runs a command on the machine, which must succeed.
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

// mount mounts an image of a hub on the machine, beside its node, until the test ends.
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

// readsMount fails the test unless a mount has the right bytes in the files first to end-1 of data.
func readsMount(t *testing.T, dir string, first, end int) {
	t.Helper()
	for n := first; n < end; n++ {
		got, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("data/%03d", n)))
		if err != nil || !slices.Equal(got, content(n)) {
			t.Errorf("file %d: %d bytes (%v), want the right ones", n, len(got), err)
		}
	}
}
