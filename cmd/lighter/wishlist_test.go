package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"lighter/hub"
	"lighter/hub/registries"
	"lighter/wire"
)

// artifacts is a registry whose repositories all have the same tags. Each tag is an artifact that
// is no image.
type artifacts struct {
	mu           sync.Mutex // guards the following
	repositories []string
	tags         []string
}

const (
	artifact = `{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"artifactType": "application/vnd.example", "config": {"mediaType": "application/vnd.oci.empty.v1+json",
		"digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", "size": 2}, "layers": []}`
	manifestType = "application/vnd.oci.image.manifest.v1+json"
)

func (a *artifacts) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch path := req.URL.Path; {
	case path == "/v2/_catalog":
		_ = json.NewEncoder(w).Encode(map[string]any{"repositories": a.repositories})
	case strings.HasSuffix(path, "/tags/list"):
		_ = json.NewEncoder(w).Encode(map[string]any{"tags": a.tags})
	case strings.Contains(path, "/manifests/"):
		w.Header().Set("Content-Type", manifestType)
		w.Header().Set("Docker-Content-Digest", digest.FromString(artifact).String())
		_, _ = w.Write([]byte(artifact))
	case strings.Contains(path, "/blobs/"):
		_, _ = w.Write([]byte("{}"))
	}
}

// wishing returns a function that runs commands about a hub, and a registry that the hub can read.
func wishing(t *testing.T) (run func(want int, args ...string) (stdout, stderr string), a *artifacts, host string) {
	t.Helper()
	url := servedHub(t, t.TempDir(), func(c *hub.Config) {
		c.Registries = []registries.Registry{{Reached: registries.Reached{Host: "127.0.0.1", Private: true}}}
	})
	a = &artifacts{}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	return func(want int, args ...string) (string, string) {
		t.Helper()
		code, stdout, stderr := lighter(t, append(args, "--hub", url)...)
		if code != want {
			t.Errorf("lighter %s: exit %d, %s%s, want exit %d", strings.Join(args, " "), code, stdout, stderr, want)
		}
		return stdout, stderr
	}, a, strings.TrimPrefix(server.URL, "http://")
}

// contains fails the test unless an output has all texts.
func contains(t *testing.T, what, output string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(output, text) {
			t.Errorf("%s: %q, want it to have %q", what, output, text)
		}
	}
}

// A list is added, shown, read again, changed and removed with commands.
func TestWishlistCommands(t *testing.T) {
	run, a, host := wishing(t)
	a.tags = []string{"1.0", "1.1", "2.0"}
	file := filepath.Join(t.TempDir(), "My Physics.yaml")
	write := func(lines ...string) {
		text := "version: 1\nuser: me\ninput:\n- " + strings.Join(lines, "\n- ") + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(host+"/root:1.*", host+"/root:2.0")
	out, _ := run(0, "wishlist", "add", "--every", "2h", file)
	contains(t, "add", out, "my-physics: 3 images: 3 to be fetched, 0 unchanged\n", "no use for user")
	out, _ = run(0, "wishlist", "list")
	contains(t, "list", out, "NAME", "my-physics", "added", "2h0m", " 3 ")
	write(host+"/root:1.*", "nonsense")
	out, stderr := run(exitProblems, "wishlist", "add", file)
	contains(t, "add with a wrong line", out, "2 images", "1 dropped", "1 problems", "line 5: nonsense: want HOST/")
	contains(t, "add with a wrong line", stderr, "1 problems of list my-physics", "the rest is done")
	out, _ = run(0, "wishlist", "show", "my-physics")
	contains(t, "show", out, "IMAGE", host+"/root:1.0", "sha256:", "line 5")
	var state wire.WishlistState
	out, _ = run(0, "wishlist", "show", "--json", "my-physics")
	err := json.Unmarshal([]byte(out), &state)
	if err != nil || len(state.Wants) != 2 || state.Last == nil || len(state.Last.Problems) != 1 {
		t.Errorf("show --json: %s, %v, want two images and a problem", out, err)
	}
	a.mu.Lock()
	a.tags = []string{"2.0"}
	a.mu.Unlock()
	_, stderr = run(exitProblems, "wishlist", "sync")
	contains(t, "sync", stderr, "1 problems")
	out, _ = run(exitProblems, "wishlist", "sync", "--confirm", "my-physics")
	contains(t, "sync --confirm", out, "0 images", "2 dropped")
	run(2, "wishlist", "sync", "--confirm")
	run(0, "wishlist", "remove", "my-physics")
	_, stderr = run(1, "wishlist", "remove", "my-physics")
	contains(t, "remove again", stderr, "my-physics")
	run(1, "wishlist", "show", "my-physics")
	run(1, "wishlist", "sync", "my-physics")
	run(2, "wishlist", "add", filepath.Join(t.TempDir(), "none.yaml"))
	run(2, "wishlist", "add", "--every", "1m", file)
	out, _ = run(0, "wishlist", "list", "--json")
	if strings.TrimSpace(out) != "[]" {
		t.Errorf("lists after the removal: %s, want []", out)
	}
}

// The images of a registry are planned, kept, and removed with a command. Without flags that define
// it, the list stays as it is.
func TestSyncCommand(t *testing.T) {
	run, a, host := wishing(t)
	a.repositories, a.tags = []string{"team/a", "team/ci/b", "other"}, []string{"v1", "v2", "latest"}
	at := host + "/team"
	out, _ := run(0, "sync", "--dry-run", at)
	contains(t, "plan", out, "2 repositories, 6 images: 6 to be fetched, 0 unchanged", "  "+at+"/ci/b:v2\n")
	if out, _ := run(0, "wishlist", "list", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("lists after a plan: %s, want none", out)
	}
	defined := []string{"sync", "--tag", "v*", "--exclude-repository", "team/ci/**", at}
	var planned, done []struct {
		Name string
		wire.WishlistResult
	}
	out, _ = run(0, append([]string{"--json", "--dry-run"}, defined...)...)
	if err := json.Unmarshal([]byte(out), &planned); err != nil || len(planned) != 1 || planned[0].Name != at ||
		!slices.Equal(planned[0].New, []string{at + "/a:v1", at + "/a:v2"}) {
		t.Errorf("plan: %s, %v, want the tags v1 and v2 of a", out, err)
	}
	out, _ = run(0, defined...)
	contains(t, "sync", out, at+": 1 repositories, 2 images: 2 to be fetched")
	out, _ = run(0, "sync", "--json", at)
	if err := json.Unmarshal([]byte(out), &done); err != nil || len(done) != 1 || done[0].Images != 2 {
		t.Errorf("the same list again: %s, %v, want two images", out, err)
	}
	out, _ = run(0, "sync", "--dry-run", at)
	contains(t, "plan of a list of the hub", out, "1 repositories, 2 images")
	out, _ = run(0, "wishlist", "list")
	contains(t, "list", out, at, "registry", "24h0m")
	out, _ = run(0, "wishlist", "show", at)
	contains(t, "show", out, "from "+at+"\n", "no repositories team/ci/**\n", "only tags v*\n", at+"/a:v1")
	a.mu.Lock()
	a.repositories = append(a.repositories, "Wrong")
	a.tags = []string{"v3"}
	a.mu.Unlock()
	_, stderr := run(exitProblems, "sync", at)
	contains(t, "all tags are gone", stderr, "--confirm", "2 images")
	out, _ = run(0, "sync", "--confirm", at)
	contains(t, "confirmed", out, "1 images", "2 dropped")
	_, stderr = run(exitProblems, "sync", "--dry-run", host)
	contains(t, "plan with a wrong name", stderr, "1 problems of "+host+"; a dry run changes nothing")
	out, stderr = run(exitProblems, "sync", "--tag", "none", host, "--name", "all")
	contains(t, "a wrong name", out+stderr, "registries, line 1: "+host+"/Wrong", "no name of a repository")
	run(2, "sync", "--confirm", "--tag", "v*", at)
	run(2, "sync", "--remove", "--dry-run", at)
	run(2, "sync", "docker.io/library")
	run(2, "sync", "--tag", "a b", host)
	run(0, "sync", "--remove", at)
	run(1, "sync", "--remove", at)
	if out, _ := run(0, "wishlist", "list"); strings.Contains(out, at) {
		t.Errorf("lists after the removal: %s", out)
	}
}
