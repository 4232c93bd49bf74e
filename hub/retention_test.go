package hub_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lighter/hub"
	"lighter/hub/catalog"
	"lighter/hub/retention"
	"lighter/test/testkit/tarball"
	"lighter/wire"
	"lighter/wire/client"
)

// retained returns the names of all images, separated by spaces.
func (h *testHub) retained() string {
	h.t.Helper()
	images, err := h.client.Images(h.t.Context(), "")
	if err != nil {
		h.t.Fatal(err)
	}
	var names []string
	for _, image := range images {
		names = append(names, image.Name)
	}
	return strings.Join(names, " ")
}

// applyRetention applies the rules and waits for the end of the job.
func (h *testHub) applyRetention(confirmed ...string) {
	h.t.Helper()
	j, err := h.client.ApplyRetention(h.t.Context(), confirmed)
	if err != nil {
		h.t.Fatal(err)
	}
	for range 3000 {
		ended, err := h.client.Jobs(h.t.Context(), true)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, e := range ended {
			if e.N == j.N && e.State != wire.JobDone {
				h.t.Fatalf("job %+v, want it done", e)
			}
			if e.N == j.N {
				return
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	h.t.Fatal("the rules were not applied within a minute")
}

// The rules remove images that they do not keep. If these are too many of a repository's images,
// they are removed only after a confirmation.
func TestRetention(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) {
		c.RetentionMaxPercent = 50
		c.Retention = []retention.Rule{{Repositories: []string{"ci/**"},
			KeepTags: []retention.Keep{{Newest: 1}, {Patterns: []string{"keep*"}}}}}
	})
	for i, name := range []string{"ci/a:1", "ci/a:2", "ci/a:keep", "ci/b:1", "ci/b:2", "ci/b:3", "other:1"} {
		h.pushReady(name, image(tarball.Of(tarball.File("f", noise(uint64(i), 1000)))))
	}
	verdicts, err := h.client.Retention(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, v := range verdicts {
		got += fmt.Sprintf("%s %s;", v.Name, v.Then)
	}
	// The tag keep of ci/a matches a pattern and is the newest, so the rules keep no other tag of
	// ci/a.
	want := "ci/a:1 waits;ci/a:2 waits;ci/a:keep stays;ci/b:1 waits;ci/b:2 waits;ci/b:3 stays;other:1 stays;"
	if got != want {
		t.Errorf("verdicts %s, want %s", got, want)
	}
	plan, err := h.client.PlanCollection(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	planned := ""
	for _, v := range plan.Collection.Images {
		planned += fmt.Sprintf("%s %s;", v.Name, v.Then)
		if v.Why == "" {
			t.Errorf("the plan does not say why %s goes", v.Name)
		}
	}
	removals := strings.NewReplacer("ci/a:keep stays;", "", "ci/b:3 stays;", "", "other:1 stays;", "")
	if want := removals.Replace(want); planned != want {
		t.Errorf("the plan of a collection says %s, want %s", planned, want)
	}
	all := h.retained()
	if h.applyRetention(); h.retained() != all {
		t.Errorf("without confirmation: %s, want %s", h.retained(), all)
	}
	h.applyRetention("ci/b")
	if got, want := h.retained(), "ci/a:1 ci/a:2 ci/a:keep ci/b:3 other:1"; got != want {
		t.Errorf("after a confirmation of ci/b: %s, want %s", got, want)
	}
	h.expect("/v2/ci/b/manifests/1", 404)
	h.expect("/v2/ci/b/manifests/3", 200)
	// After one more push, one of two images of ci/b goes: that is not more than 50 %.
	h.pushReady("ci/b:4", image(upperTar))
	h.applyRetention()
	if got, want := h.retained(), "ci/a:1 ci/a:2 ci/a:keep ci/b:4 other:1"; got != want {
		t.Errorf("after another push: %s, want %s", got, want)
	}
	if _, err := h.client.ApplyRetention(t.Context(), []string{"ci/none"}); err == nil ||
		!strings.Contains(err.Error(), "ci/none") {
		t.Errorf("confirmed a repository without images: %v, want an error that names it", err)
	}
}

// A hub without rules refuses to apply them, and says how to configure some.
func TestNoRetention(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	var failed *client.Error
	if _, err := h.client.ApplyRetention(t.Context(), nil); !errors.As(err, &failed) || failed.Status != 400 ||
		!strings.Contains(failed.Message, "[[retention]]") {
		t.Errorf("apply rules without any: %v, want 400 and a hint at [[retention]]", err)
	}
}

// If an image is pushed under a name while retention removes the name, the pushed image stays,
// whether the push is announced before or during the removal.
func TestRetentionBesideAPush(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	is := func() (bool, error) { return true, nil }
	push := func(before func()) { // as another process does, without the lock of this one
		t.Helper()
		settled, err := h.Names().Changing(t.Context(), "a", "1")
		if err != nil {
			t.Fatal(err)
		}
		before()
		settled()
		h.idle()
		if h.expect("/v2/a/manifests/1", 200); h.retained() != "a:1" {
			t.Errorf("the hub has %q, want the pushed image", h.retained())
		}
	}
	h.pushReady("a:1", image(lowerTar))
	push(func() {
		if removed, err := h.Names().RemoveIf(t.Context(), "a:1", is); removed || err != nil {
			t.Errorf("removed while a push is announced: %t, %v, want false", removed, err)
		}
	})
	unlock := h.Names().Lock("a")
	n, err := h.Catalog().Jobs.Add(t.Context(),
		catalog.Job{Kind: "name", Key: "a:1", Payload: []byte(`{"remove":true}`)}, 0)
	for range 3000 {
		if err != nil {
			t.Fatal(err)
		}
		var j catalog.Job
		if j, err = h.Catalog().Jobs.Get(t.Context(), n); j.State == wire.JobRunning {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	push(unlock) // the push is announced while the removal runs and waits for the lock
	if removed, err := h.Names().RemoveIf(t.Context(), "a:1", is); !removed || err != nil || h.retained() != "" {
		t.Errorf("removed in the end: %t, %v, want true; the hub has %q, want nothing", removed, err, h.retained())
	}
}
