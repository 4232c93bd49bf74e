package hub_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/hub/retention"
	"lighter/wire"
)

// If the files of one repository cannot be read, a repair reports it, and a collection of blobs,
// retention and the jobs of its names fail with the reason. Other repositories are checked and
// repaired as usual.
func TestRepositoryCannotBeRead(t *testing.T) {
	t.Parallel()
	c := localConfig(t)
	c.RetentionMaxPercent = 50
	c.Retention = []retention.Rule{{Repositories: []string{"bad"},
		KeepTags: []retention.Keep{{Patterns: []string{"none"}}}}}
	h := runHub(t, openHub(t, c))
	h.pushReady("bad:1", image(lowerTar))
	for _, name := range []string{"good:1", "good:2"} {
		h.pushReady(name, image(upperTar))
	}
	h.wantClean("at first", "bad:1")
	lower, _ := layerOf(lowerTar)
	tag := filepath.Join(registryDir(h.config), "docker/registry/v2/repositories/bad/_manifests/tags/1/current/link")
	blob := h.blobFile(lower)
	for _, file := range []string{tag, blob} { // a symbolic link to itself cannot be read
		if err := errors.Join(os.Rename(file, file+".away"), os.Symlink(file, file)); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Registry().Repository("good").Delete(t.Context(), "2"); err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	last, err := h.client.Fsck(limited, wire.Fsck{Repair: true}, func(wire.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	text := findings(*last.Check)
	for _, want := range []string{"bad: the registry's storage", "restore the registry's files",
		"bad:1: manifest 1 of bad", "blob " + lower.String(), "manifest of good:2"} {
		if !strings.Contains(text, want) {
			t.Errorf("findings %s, want %q among them", text, want)
		}
	}
	images, err := h.client.Images(t.Context(), "")
	if err != nil || len(images) != 2 || images[0].Name != "bad:1" || images[1].Name != "good:1" {
		t.Errorf("after the repair: %+v (%v), want bad:1 and good:1", images, err)
	}
	if _, err := h.Blobs().Collect(t.Context(), &report.Progress{}); err == nil ||
		away.Is(err) {
		t.Errorf("collection of blobs: %v, want an error that ends it", err)
	}
	ended := func(n int64) (j catalog.Job) {
		t.Helper()
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if j, err = h.Catalog().Jobs.Get(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			if j.State == wire.JobFailed || j.State == wire.JobDone {
				break
			}
		}
		return j
	}
	expiry, err := h.client.ApplyRetention(t.Context(), []string{"bad"})
	if err != nil {
		t.Fatal(err)
	}
	if j := ended(expiry.N); j.State != wire.JobFailed || !strings.Contains(j.Error, "remove bad:1") {
		t.Errorf("retention is %s: %s, want it failed with bad:1", j.State, j.Error)
	}
	for name, want := range map[string]string{"bad:1": wire.JobFailed, "good:1": wire.JobDone} {
		n, err := h.Catalog().Jobs.Add(t.Context(), catalog.Job{Kind: "name", Key: name, Payload: []byte("{}")}, 0)
		if err != nil {
			t.Fatal(err)
		}
		j := ended(n)
		if isBad := strings.Contains(j.Error, "repository bad cannot be read"); j.State != want ||
			isBad != (want == wire.JobFailed) {
			t.Errorf("the job of %s is %s: %s, want %s", name, j.State, j.Error, want)
		}
	}
	for _, file := range []string{tag, blob} {
		if err := errors.Join(os.Remove(file), os.Rename(file+".away", file)); err != nil {
			t.Fatal(err)
		}
	}
	h.wantClean("in the end", "bad:1", "good:1")
}
