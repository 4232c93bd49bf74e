//go:build e2e

package hub_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"lighter/hub"
	"lighter/hub/pullthrough"
	"lighter/hub/registries"
	"lighter/test/testkit/distribution"
	"lighter/wire"
)

// localName stands for a registry at a hub that listens on 127.0.0.1.
const localName = "localhost"

// pushReference returns the reference of an image that is pushed through a hub.
func (h *testHub) pushReference(t *testing.T, image string) name.Reference {
	t.Helper()
	_, port, _ := strings.Cut(strings.TrimPrefix(h.url, "http://"), ":")
	ref, err := name.ParseReference(localName + ":" + port + "/" + image)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// A hub is killed at each request of a push that its registry gets. The next one has no image that
// the registry does not have. The client pushes again, and the image is ready.
func TestPushThroughAKilledHub(t *testing.T) {
	u := startUpstream(t)
	c := hubConfig(t)
	c.Registries = append(c.Registries, registries.Registry{Reached: reached(u.host()),
		PushNames: []string{localName}})
	var left atomic.Int64 // requests until the hub is killed
	var running atomic.Pointer[process]
	u.guardBy(func(http.ResponseWriter, *http.Request) bool {
		if left.Add(-1) == 0 {
			running.Load().kill()
		}
		return false // the registry goes on
	})
	for step := int64(1); ; step++ {
		image, err := random.Image(30_000, 1)
		if err != nil {
			t.Fatal(err)
		}
		tag := "some/image:" + strconv.FormatInt(step, 10)
		running.Store(startProcess(t, c))
		left.Store(step)
		push := func() error {
			return remote.Write(running.Load().pushReference(t, tag), image,
				remote.WithRetryBackoff(remote.Backoff{Steps: 1}))
		}
		err = push()
		if left.Load() > 0 {
			if err != nil || step < 10 {
				t.Errorf("the push of %d steps has ended with %v, want none, after 10 steps or more", step-1, err)
			}
			return
		}
		running.Load().kill() // it has ended
		running.Store(startProcess(t, c))
		has := hasImage(t, u, tag)
		images, err := running.Load().client.Images(t.Context(), u.host()+"/"+tag)
		if err != nil || len(images) > 0 && !has {
			t.Errorf("step %d: images %+v, %v, and the registry has the image: %t", step, images, err, has)
		}
		left.Store(1 << 62)
		if err := push(); err != nil {
			t.Fatalf("step %d: push again: %v", step, err)
		}
		p := running.Load()
		if got := p.ingested(u.host() + "/" + tag); got.State != wire.StateReady {
			t.Errorf("step %d: the image is %+v, want it ready", step, got)
		}
		if problems := p.problems(u.host() + "/" + tag); problems != "" {
			t.Errorf("step %d: %s", step, problems)
		}
		p.kill()
	}
}

// hasImage reports whether a registry has an image.
func hasImage(t *testing.T, u *upstream, image string) bool {
	t.Helper()
	ref, err := name.ParseReference(u.host() + "/" + image)
	if err != nil {
		t.Fatal(err)
	}
	_, err = remote.Head(ref)
	return err == nil
}

// Skopeo pushes to a registry with TLS and a login, through the hub, which reads it with its own
// login. With a wrong login the push fails as at the registry.
func TestPushThroughToARealRegistry(t *testing.T) {
	host, ca := distribution.StartPrivate(t)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte(distribution.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := startHub(t, func(c *hub.Config) {
		c.Registries = append(c.Registries, registries.Registry{Reached: registries.Reached{Host: host, Private: true,
			CA: ca, Username: distribution.User, PasswordFile: password},
			PushNames: []string{localName}, Readers: string(pullthrough.Hub), Repositories: []string{"team/*"}})
	})
	h.Pushes().MinBytes = 1000
	source := startUpstream(t)
	image, err := random.Image(100_000, 2)
	if err != nil {
		t.Fatal(err)
	}
	from, err := name.ParseReference(source.host() + "/image:1")
	if err == nil {
		err = remote.Write(from, image)
	}
	if err != nil {
		t.Fatal(err)
	}
	push := func(repository, password string) error {
		out, err := exec.CommandContext(t.Context(), "skopeo", "copy", "--quiet", "--insecure-policy",
			"--src-tls-verify=false", "--dest-tls-verify=false", "--dest-creds", distribution.User+":"+password,
			"docker://"+from.String(), "docker://"+h.pushReference(t, repository+":1").String()).CombinedOutput()
		t.Logf("skopeo: %s", out)
		return err
	}
	if push("team/image", "wrong") == nil {
		t.Error("a push with a wrong login has succeeded")
	}
	h.wantNothing()
	for _, repository := range []string{"other/image", "team/image"} {
		if err := push(repository, distribution.Password); err != nil {
			t.Errorf("push to %s: %v", repository, err)
		}
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got := h.ingested(host + "/team/image:1"); got.State != wire.StateReady || got.Digest != digest.String() {
		t.Errorf("the image is %+v, want %s, ready", got, digest)
	}
	// Nobody has said that everybody may read the other repository.
	if images, err := h.client.Images(t.Context(), host+"/other/image:1"); err != nil || len(images) > 0 {
		t.Errorf("images of the other repository: %+v, %v, want none", images, err)
	}
}
