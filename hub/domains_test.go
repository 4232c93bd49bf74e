package hub_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub"
	"lighter/hub/quota"
	"lighter/hub/wishlist"
	"lighter/wire"
	"lighter/wire/client"
)

// withTeam configures a domain "team" with the repositories team/**.
func withTeam(c *hub.Config) {
	c.Domains = []hub.Domain{{Name: "team", Repositories: []string{"team/**"}}}
}

// in returns the hub as it is seen in a domain.
func (h *testHub) in(domain string) *testHub {
	h.t.Helper()
	of := &testHub{Hub: h.Hub.In(domain), t: h.t, url: h.url, stop: h.stop}
	var err error
	if of.config, err = h.config.OfDomain(domain); err != nil {
		h.t.Fatal(err)
	}
	if of.client, err = client.New(client.Options{URL: h.url, Domain: domain}); err != nil {
		h.t.Fatal(err)
	}
	return of
}

// pathsOf returns the paths of all requests that a node sends about an image.
func (h *testHub) pathsOf(i wire.Image) (paths []string) {
	h.t.Helper()
	domain := h.client.Domain()
	tree, err := chunk.ParseID(i.Tree)
	if err != nil {
		h.t.Fatal(err)
	}
	paths = []string{wire.ChainPath(domain, i.Chain), wire.ManifestPath(domain, i.Digest),
		wire.TreePath(domain, i.Chain), wire.IndexPath(domain, tree), wire.LocationsPath(domain, tree)}
	header, chunks := h.fetchTree(i.Chain)
	for id := range chunks {
		paths = append(paths, wire.ChunkPath(domain, id))
	}
	locations := fetchLocations(h.t, h.origins(), header)
	for n := range header.Extents {
		unit, err := locations.Unit(n)
		if err != nil {
			h.t.Fatal(err)
		}
		paths = append(paths, wire.UnitPath(domain, unit))
	}
	return paths
}

// A domain answers 404 for the chains, objects and chunks of other domains, and an error for their
// images.
func TestDomainsAnswerForTheirImagesOnly(t *testing.T) {
	t.Parallel()
	h := startHub(t, withTeam)
	team := h.in("team")
	h.push("team/secret:1", image(lowerTar, upperTar))
	h.push("ours:1", image(layer(7)))
	for own, name := range map[*testHub]string{team: "team/secret:1", h: "ours:1"} {
		other := h.in(wire.DefaultDomain)
		if own == h {
			other = team
		}
		got := own.ready(name)
		for _, path := range own.pathsOf(got) {
			own.expect(path, http.StatusOK)
			there := strings.Replace(path, own.client.Domain(), other.client.Domain(), 1)
			if status, _, header := other.do("GET", there, nil); status != http.StatusNotFound ||
				header.Get(wire.MissingHeader) == "" {
				t.Errorf("%s: %d, want 404, as only domain %s has it", there, status, own.client.Domain())
			}
		}
		if found, err := other.client.Images(t.Context(), ""); err != nil || len(found) != 1 || found[0].Name == name {
			t.Errorf("domain %s lists %+v, %v, want its own image", other.client.Domain(), found, err)
		}
		_, inspected := other.client.Inspect(t.Context(), name)
		_, verified := other.client.Verify(t.Context(), name, silent)
		for what, err := range map[string]error{"removes": other.client.Remove(t.Context(), name),
			"inspects": inspected, "verifies": verified} {
			if err == nil || !strings.Contains(err.Error(), "--domain "+own.client.Domain()) {
				t.Errorf("domain %s %s %s: %v, want an error that names the domain", other.client.Domain(), what, name,
					err)
			}
		}
	}
	keys, err := h.client.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	teams, err := team.client.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if keys[0].Equal(teams[0]) {
		t.Error("two domains sign with one key")
	}
	chain, err := team.client.Chain(t.Context(), digest.FromBytes(lowerTar).String())
	if err != nil || len(chain.Above) != 1 || chain.Above[0].Statement.Verify(chain.Above[0].Chain, keys) == nil {
		t.Errorf("the chain %+v, %v, want it signed by its own domain's key only", chain, err)
	}
	_, metrics, _ := h.do("GET", "/metrics", nil)
	for _, domain := range []string{wire.DefaultDomain, "team"} {
		want := fmt.Sprintf(`lighter_hub_images{domain=%q,state="ready"} 1`, domain)
		if !strings.Contains(string(metrics), want) {
			t.Errorf("no %s in:\n%s", want, metrics)
		}
	}
	if _, body, _ := h.do("GET", "/v2/_catalog", nil); strings.Contains(string(body), "team/secret") ||
		!strings.Contains(string(body), "ours") {
		t.Errorf("the list of repositories is %s, want those of the default domain", body)
	}
}

// The same image in two domains is stored twice. If it is removed and collected in one domain, it
// stays in the other.
func TestDomainsStoreTheSameTwice(t *testing.T) {
	t.Parallel()
	h := startHub(t, withTeam)
	team := h.in("team")
	empty := h.holdings()
	i := image(lowerTar, upperTar)
	got := h.laid("a:1", i)
	ours := h.holdings()
	teams := team.laid("team/a:1", i)
	if teams.Tree != got.Tree {
		t.Errorf("one image has trees %s and %s, want the same", got.Tree, teams.Tree)
	}
	if now := h.holdings(); fmt.Sprint(now) != fmt.Sprint(ours) {
		t.Errorf("after a push to another domain, the default one has\n%v\nwant\n%v", now, ours)
	}
	isPack := func(key string) bool { return strings.HasPrefix(key, "packs/") }
	if objects := team.holdings().objects; !slices.ContainsFunc(objects, isPack) {
		t.Errorf("the other domain has the objects %v, want a pack of its own", objects)
	}
	h.wantClean("both", "a:1")
	team.wantClean("both", "team/a:1")
	h.remove("a:1")
	h.collect(0)
	if now := h.holdings(); fmt.Sprint(now.objects) != fmt.Sprint(empty.objects) {
		t.Errorf("after the collection, the default domain has %v, want %v", now.objects, empty.objects)
	}
	h.collectBlobs()
	team.wantClean("collected in the other domain", "team/a:1")
	if found := h.registryFiles("/blobs/"); len(found) > 0 {
		t.Errorf("the registry of the default domain has %v, want no blobs", found)
	}
	for _, b := range [][]byte{gzipped(lowerTar), gzipped(upperTar)} {
		team.expectBlob("team/a", digest.FromBytes(b), b)
	}
	again := h.restart().in("team")
	again.wantClean("after a restart", "team/a:1")
}

// A client that knows a digest need not have its bytes. So no blob of another domain is mounted or
// linked, and none is skipped when an image is copied.
func TestDigestsAcrossDomains(t *testing.T) {
	t.Parallel()
	h := startHub(t, withTeam)
	victim := image(lowerTar, upperTar)
	manifest, config, blobs := victim.build()
	h.pushReady("a:1", victim)
	for _, layer := range manifest.Layers {
		for to, want := range map[string]int{"team/b": http.StatusAccepted, "b": http.StatusCreated} {
			path := fmt.Sprintf("/v2/%s/blobs/uploads/?mount=%s&from=a", to, layer.Digest)
			if status, body, _ := h.do("POST", path, nil); status != want {
				t.Errorf("%s: %d %s, want %d", path, status, body, want)
			}
		}
		h.expect("/v2/team/b/blobs/"+layer.Digest.String(), http.StatusNotFound)
	}
	h.pushBlob("team/b", config)
	text, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if status, body, _ := h.do("PUT", "/v2/team/b/manifests/1", text, "Content-Type", manifest.MediaType); status !=
		http.StatusBadRequest {
		t.Errorf("push a manifest with layers of another domain: %d %s, want 400", status, body)
	}
	// Another registry names the layers, too, and does not have them.
	r := startRegistry(t, victim)
	for _, b := range blobs {
		delete(r.blobs, digest.FromBytes(b))
	}
	if last, err := h.in("team").add(wire.Add{Source: r.source(), Name: "team/b:1"}); err == nil &&
		last.Images[0].State == wire.StateReady {
		t.Errorf("an image with layers of another domain: %+v, want it not ready", last.Images[0])
	}
	last, err := h.add(wire.Add{Source: r.source(), Name: "b:1"})
	if err != nil || last.Images[0].State != wire.StateReady {
		t.Errorf("an image whose layers the same domain has: %+v, %v, want it ready", last, err)
	}
}

func TestUnknownAndWrongDomains(t *testing.T) {
	t.Parallel()
	h := startHub(t, withTeam, func(c *hub.Config) {
		c.Quota = []quota.Quota{{Domain: "team", Bytes: 1}}
	})
	status, body, header := h.do("GET", "/lighter/1/other/key", nil)
	if status != http.StatusNotFound || header.Get(wire.MissingHeader) != "" ||
		!strings.Contains(string(body), `no domain \"other\"`) || !strings.Contains(string(body), "[[domain]]") {
		t.Errorf("a domain that is not configured: %d %s, want 404 and what to do", status, body)
	}
	if _, err := client.New(client.Options{URL: h.url, Domain: "../x"}); err == nil {
		t.Error("a client accepts a domain of any name")
	}
	r := startRegistry(t, image(lowerTar))
	for _, add := range []wire.Add{{Source: r.source(), Name: "team/a:1"}, {Name: "team/a:1"}} {
		if _, err := h.add(add); err == nil || !strings.Contains(err.Error(), "--domain team") {
			t.Errorf("%+v: %v, want an error that names the domain", add, err)
		}
	}
	if _, err := h.in("team").add(wire.Add{Source: r.source(), Name: "a:1"}); err == nil ||
		!strings.Contains(err.Error(), "--domain default") {
		t.Errorf("added to another domain: %v, want an error that names the right one", err)
	}
	if _, err := h.in("team").add(wire.Add{Source: r.source(), Name: "team/a:1"}); err == nil ||
		!strings.Contains(err.Error(), "quota") {
		t.Errorf("beyond the domain's quota: %v, want an error", err)
	}
	if _, err := h.add(wire.Add{Source: r.source(), Name: "a:1"}); err != nil {
		t.Errorf("in the domain without a quota: %v, want no error", err)
	}
}

// The images of a list are in its domain. Lines about repositories of other domains are wrong.
func TestWishlistOfADomain(t *testing.T) {
	t.Parallel()
	mine, other := startRegistry(t, image(lowerTar)), startRegistry(t, image(upperTar))
	h := startWants(t, func(c *hub.Config) {
		c.Domains = []hub.Domain{{Name: "team", Repositories: []string{mine.host() + "/**"}}}
		c.Wishlists = []wishlist.List{{Name: "list", Domain: "team", Images: []string{mine.name(), other.name()}}}
	}).in("team")
	got := h.synced("list", false)
	if got.Images != 1 || got.Failed != 1 || !strings.Contains(fmt.Sprint(got.Problems), "domain") {
		t.Errorf("the list: %+v, want one image, and a problem that names the domain", got)
	}
	h.eventually("the image is not ready in its domain", func() bool { return h.isReady(mine.name(), mine.digest()) })
}

func TestConfigOfDomains(t *testing.T) {
	of := func(name string, repositories ...string) hub.Domain {
		return hub.Domain{Name: name, Repositories: repositories}
	}
	for want, domains := range map[string][]hub.Domain{
		"":                        {of("a", "a/**", "localhost:5000/a"), of("b-1", "b/*")},
		"no name of a domain":     {of("A", "a")},
		"every hub has":           {of("default", "a")},
		"repositories is empty":   {of("a")},
		"is no pattern":           {of("a", "[")},
		"is configured twice":     {of("a", "a"), of("a", "b")},
		`"a" (a/**) and "b" (a/`:  {of("a", "a/**"), of("b", "a/x")},
		`"a" (*/x) and "b" (*/*)`: {of("a", "*/x"), of("b", "*/*")},
	} {
		c := hub.DefaultConfig()
		c.Domains = domains
		err := c.Check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", domains, err, want)
		}
	}
	c := hub.DefaultConfig()
	c.Quota = []quota.Quota{{Domain: "none", Bytes: 1}}
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), `no domain "none"`) {
		t.Errorf("a quota of a domain that is not configured: %v, want an error", err)
	}
}

// A backup contains all domains, each with its keys.
func TestBackupOfDomains(t *testing.T) {
	t.Parallel()
	h := startHub(t, withTeam, func(c *hub.Config) { c.Catalog, c.Bucket = "", "" })
	dir := filepath.Join(t.TempDir(), "backup")
	h.pushReady("a:1", image(lowerTar))
	h.push("team/a:1", image(upperTar))
	h.in("team").ready("team/a:1")
	h.idle()
	h.in("team").idle()
	if r := makeBackup(h, dir); r.Copied != int64(len(h.holdings().objects)+len(h.in("team").holdings().objects)) {
		t.Errorf("backup %+v, want the objects of both domains", r)
	}
	again := restored(h, dir)
	again.wantClean("restored", "a:1")
	again.in("team").wantClean("restored", "team/a:1")
	key := func(h *testHub) string { return index.FormatKey(h.PublicKeys()[0]) }
	if key(again.in("team")) != key(h.in("team")) || key(again) != key(h) {
		t.Error("the restored hub has other keys")
	}
}
