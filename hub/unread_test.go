package hub_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/hub"
	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/images"
	"lighter/hub/jobs"
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

// attempts counts the attempts at the image jobs of a hub, which wait until begin is called.
type attempts struct {
	atomic.Int64
	begin chan struct{}
}

// openCounted opens a hub that makes short pauses between the attempts at a job, and counts those
// at image jobs.
func openCounted(t *testing.T, c hub.Config) (*hub.Hub, *attempts) {
	t.Helper()
	opened, a := openHub(t, c), &attempts{begin: make(chan struct{})}
	opened.Jobs().RetryDelay = 10 * time.Millisecond
	opened.Jobs().ReadPauses = []time.Duration{10 * time.Millisecond, 20 * time.Millisecond}
	opened.Jobs().Around(func(run jobs.Run) jobs.Run {
		return func(ctx context.Context, j *jobs.Running) error {
			<-a.begin
			a.Add(1)
			return run(ctx, j)
		}
	}, images.JobKind)
	return opened, a
}

// withS3 returns the configuration of a hub with a bucket in memory.
func withS3(t *testing.T) (hub.Config, *memoryS3) {
	t.Helper()
	c := localConfig(t)
	s, bucket := startS3(t)
	c.Bucket = bucket
	return c, s
}

// nothing refuses no requests.
func nothing(*http.Request) int { return 0 }

// forbid refuses requests about one blob with status 403.
func forbid(blob digest.Digest) func(*http.Request) int {
	return func(req *http.Request) int {
		if strings.HasSuffix(req.URL.Path, blob.Encoded()+"/data") {
			return http.StatusForbidden
		}
		return 0
	}
}

// If one blob cannot be read although the registry's storage works, its image fails after three
// attempts. The reason names the blob, the cause and what to do. Other images do not wait, not even
// those of the same name. When the blob can be read again, the job can be retried.
func TestBlobCannotBeRead(t *testing.T) {
	t.Parallel()
	lower, _ := layerOf(lowerTar)
	t.Run("EIO", func(t *testing.T) {
		t.Parallel()
		blob := ""
		testUnread(t, localConfig(t), "input/output error", func(h *testHub) error {
			// The kernel answers a read of address 0 of a process with EIO.
			blob = h.blobFile(lower)
			return errors.Join(os.Rename(blob, blob+".away"), os.Symlink("/proc/self/mem", blob))
		}, func() error { return errors.Join(os.Remove(blob), os.Rename(blob+".away", blob)) })
	})
	t.Run("403", func(t *testing.T) {
		t.Parallel()
		c, s3 := withS3(t)
		testUnread(t, c, "403 api error Forbidden", func(*testHub) error {
			s3.refuse(forbid(lower))
			return nil
		}, func() error {
			s3.refuse(nothing)
			return nil
		})
	})
}

// testUnread is TestBlobCannotBeRead for one cause. damage makes the blob of lowerTar unreadable.
func testUnread(t *testing.T, c hub.Config, cause string, damage func(h *testHub) error, repair func() error) {
	t.Helper()
	lower, _ := layerOf(lowerTar)
	c.Platforms = []string{"linux/amd64", "linux/arm64"}
	opened, attempted := openCounted(t, c)
	h := runHub(t, opened)
	h.pushIndex("both:1", part{image: image(lowerTar), platform: amd64}, part{image: image(upperTar), platform: arm64})
	h.push("good:1", image(layer(1)))
	if err := damage(h); err != nil {
		t.Fatal(err)
	}
	close(attempted.begin)
	if settled := h.settled("good:1"); settled[0].State != wire.StateReady {
		t.Errorf("good:1: %+v, want it ready", settled)
	}
	settled := h.settled("both:1")
	if len(settled) != 2 || settled[0].State != wire.StateFailed || settled[1].State != wire.StateReady {
		t.Fatalf("both:1: %+v, want the first one failed, the second one ready", settled)
	}
	for _, text := range []string{lower.String(), cause, "lighter jobs retry", "lighter fsck --deep"} {
		if !strings.Contains(settled[0].Error, text) {
			t.Errorf("the reason is %q, want %q in it", settled[0].Error, text)
		}
	}
	if n := attempted.Load(); n != 4 {
		t.Errorf("%d attempts at both names, want 4: 3 at one and 1 at the other", n)
	}
	if err := repair(); err != nil {
		t.Fatal(err)
	}
	h.retryFailed("both:1")
	for _, i := range h.settled("both:1") {
		if i.State != wire.StateReady {
			t.Errorf("after the blob can be read again: %+v, want it ready", i)
		}
	}
}

// retryFailed retries the failed job of an image's name.
func (h *testHub) retryFailed(name string) {
	h.t.Helper()
	ended, err := h.client.Jobs(h.t.Context(), true)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, j := range ended {
		if j.Kind == images.JobKind && j.Key == name && j.State == wire.JobFailed {
			if _, err := h.Jobs().Retry(h.t.Context(), j.N); err != nil {
				h.t.Fatal(err)
			}
			return
		}
	}
	h.t.Fatalf("ended jobs %+v, want a failed one of %s", ended, name)
}

// An outage of the registry's storage only delays an image, though it lasts for more attempts than
// a job has if one blob cannot be read, and whatever its errors are.
func TestOutageOfTheRegistry(t *testing.T) {
	t.Parallel()
	lower, _ := layerOf(lowerTar)
	t.Run("directory", func(t *testing.T) {
		t.Parallel()
		c := localConfig(t)
		docker := filepath.Join(registryDir(c), "docker")
		testOutage(t, c, func() error { // a file is where a directory has to be
			return errors.Join(os.Rename(docker, docker+".away"), os.WriteFile(docker, nil, 0o600))
		}, func() error { return errors.Join(os.Remove(docker), os.Rename(docker+".away", docker)) })
	})
	for what, refuses := range map[string]func(*http.Request) int{
		"403 for all": func(*http.Request) int { return http.StatusForbidden },
		"403 for all blobs": func(req *http.Request) int {
			if strings.Contains(req.URL.Path, "/blobs/") {
				return http.StatusForbidden
			}
			return 0
		},
		"403 for one blob, and for all writes": func(req *http.Request) int {
			if req.Method == http.MethodPut {
				return http.StatusForbidden
			}
			return forbid(lower)(req)
		},
		"503 for one blob": func(req *http.Request) int {
			if forbid(lower)(req) != 0 {
				return http.StatusServiceUnavailable
			}
			return 0
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, s3 := withS3(t)
			set := func(refuses func(*http.Request) int) func() error {
				return func() error {
					s3.refuse(refuses)
					return nil
				}
			}
			testOutage(t, c, set(refuses), set(nothing))
		})
	}
}

// testOutage is TestOutageOfTheRegistry for an outage from begin to end.
func testOutage(t *testing.T, c hub.Config, begin, end func() error) {
	t.Helper()
	opened, attempted := openCounted(t, c)
	h := runHub(t, opened)
	h.push("a:1", image(lowerTar))
	if err := begin(); err != nil {
		t.Fatal(err)
	}
	close(attempted.begin)
	for deadline := time.Now().Add(time.Minute); attempted.Load() < 5; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d attempts in a minute, want 5", attempted.Load())
		}
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	h.ready("a:1")
}
