//go:build e2e

package hub_test

import (
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"lighter/test/testkit/distribution"
	"lighter/wire"
)

// pushTo pushes a new image to a registry, and returns its digest.
func pushTo(t *testing.T, image string) string {
	t.Helper()
	made, err := random.Image(10_000, 2)
	if err == nil {
		made, err = mutate.ConfigFile(made, withPlatform(t, made))
	}
	if err == nil {
		err = remote.Write(reference(t, image), made)
	}
	if err != nil {
		t.Fatal(err)
	}
	digest, err := made.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

func withPlatform(t *testing.T, image v1.Image) *v1.ConfigFile {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	return config
}

func reference(t *testing.T, image string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// The images of a wishlist follow a real registry: those of a pattern of tags become ready, a moved
// tag is ingested again, and an image that no line names any more goes. So do those of the whole
// registry.
func TestListsFollowARealRegistry(t *testing.T) {
	host := distribution.Start(t)
	h := startWants(t)
	images := map[string]string{}
	for _, image := range []string{"team/app:1.0", "team/app:1.1", "team/app:2.0", "team/tool:1", "other/app:1"} {
		images[host+"/"+image] = pushTo(t, host+"/"+image)
	}
	haveReady := func(want map[string]string) {
		t.Helper()
		for image, digest := range want {
			h.eventually(image+" is not ready", func() bool { return h.isReady(image, digest) })
		}
	}
	add := func(w wire.Wishlist) *wire.WishlistResult {
		t.Helper()
		j, err := h.client.AddWishlist(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		return h.awaited(j)
	}
	app := host + "/team/app:"
	got := add(wire.Wishlist{Name: "apps", Images: []string{app + "1.*", app + "2.0"}})
	if got.Images != 3 || got.Fetched != 3 || got.Failed != 0 {
		t.Errorf("a list with a pattern: %+v, want 3 images to be fetched", got)
	}
	haveReady(map[string]string{app + "1.0": images[app+"1.0"], app + "1.1": images[app+"1.1"],
		app + "2.0": images[app+"2.0"]})

	images[app+"1.1"] = pushTo(t, app+"1.1")
	if got := h.synced("apps", false); got.Fetched != 1 || got.Unchanged != 2 {
		t.Errorf("a moved tag: %+v, want one image to be fetched", got)
	}
	haveReady(map[string]string{app + "1.1": images[app+"1.1"]})
	if got := add(wire.Wishlist{Name: "apps", Images: []string{app + "1.*"}}); got.Dropped != 1 {
		t.Errorf("a line less: %+v, want one image dropped", got)
	}
	h.eventually("an image that no line names is still there", func() bool { return h.isMissing(app + "2.0") })

	all := wire.Wishlist{Name: "all", Registries: []string{host}}
	last, err := h.client.PlanWishlist(t.Context(), all, silent)
	if plan := last.Wishlist; err != nil || plan.Found != 3 || plan.Fetched != 3 || plan.Unchanged != 2 {
		t.Errorf("plan %+v, %v, want 3 repositories and 3 new images", plan, err)
	}
	if got := add(all); got.Found != 3 || got.Images != 5 || got.Failed != 0 {
		t.Errorf("the whole registry: %+v, want 3 repositories and 5 images", got)
	}
	haveReady(images)
	// The registry still lists the repository, without tags.
	tool := host + "/team/tool"
	if err := remote.Delete(reference(t, tool+"@"+images[tool+":1"])); err != nil {
		t.Fatal(err)
	}
	if got := h.synced("all", false); got.Dropped != 1 || got.Failed != 0 || got.Unchanged != 4 {
		t.Errorf("an emptied repository: %+v, want one image dropped", got)
	}
	h.eventually("an image that is gone from its registry is still there", func() bool {
		return h.isMissing(tool + ":1")
	})
	if err := h.client.RemoveWishlist(t.Context(), "all"); err != nil {
		t.Fatal(err)
	}
	h.eventually("an image of a removed list is still there", func() bool { return h.isMissing(host + "/other/app:1") })
	haveReady(map[string]string{app + "1.0": images[app+"1.0"]}) // the first list wants it
	states, err := h.client.Wishlists(t.Context())
	if err != nil || len(states) != 1 || states[0].Name != "apps" || states[0].Wanted != 2 {
		t.Errorf("lists %+v, %v, want one with two images", states, err)
	}
}
