package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/cmd/command"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/registrytest"
)

// pushPlatforms pushes an index of small images for amd64 and arm64. It returns the index's
// reference, and the digest of the second image's layer.
func pushPlatforms(t *testing.T, r *registrytest.Registry) (ref string, layer digest.Digest) {
	t.Helper()
	index, ref := v1.ImageIndex(empty.Index), r.Host+"/team/image:1"
	for _, arch := range []string{"amd64", "arm64"} {
		dir := t.TempDir()
		base, made := filepath.Join(dir, "base"), filepath.Join(dir, "made")
		err := errors.Join(os.MkdirAll(filepath.Join(base, "blobs/sha256"), 0o700),
			layout.Write(base, ocispec.Manifest{}, ocispec.Image{Platform: ocispec.Platform{OS: "linux",
				Architecture: arch}, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}}}),
			layout.Extend(base, made, func(l *layout.Layer) error { return l.File("program", []byte(arch)) }))
		if err != nil {
			t.Fatal(err)
		}
		one, _ := r.Push(t, made, "team/image:"+arch)
		parsed, err := name.ParseReference(one, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		image, err := remote.Image(parsed)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := image.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		layer = digest.Digest(manifest.Layers[0].Digest.String())
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	to, err := name.ParseReference(ref, name.Insecure)
	if err == nil {
		err = remote.WriteIndex(to, index)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ref, layer
}

// If the command fails for a later platform, it has printed what it has done for earlier ones, and
// names the platform.
func TestAttachFailsForALaterPlatform(t *testing.T) {
	r := registrytest.Start(t, true)
	ref, layer := pushPlatforms(t, r)
	key := filepath.Join(t.TempDir(), "key.pem")
	r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, layer.String()) {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	args := []string{"attach", "--key", key, "--make-key", "--platform", "all", ref}
	code, stdout, stderr := lighter(t, args...)
	if code != command.ExitFailed || !strings.Contains(stdout, ref+" linux/amd64: attached\n") ||
		!strings.Contains(stderr, "for linux/arm64: ") || strings.Contains(stdout, "arm64") {
		t.Errorf("exit %d, %q, %q; want the first platform's result, and a failure of the second", code, stdout, stderr)
	}
	code, stdout, stderr = lighter(t, append(args, "--json")...)
	var got attachResult
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != command.ExitFailed || len(got.Done) != 1 ||
		got.Done[0].State != "unchanged" || !strings.Contains(got.Failed, "linux/arm64") ||
		!strings.Contains(stderr, got.Failed) {
		t.Errorf("exit %d, %q, %q, %v; want JSON with one result and the failure", code, stdout, stderr, err)
	}
}

// If an index cannot be removed, the command says which ones it has removed.
func TestRemoveFailsHalfWay(t *testing.T) {
	r := registrytest.Start(t, true)
	ref, _ := pushPlatforms(t, r)
	keys := t.TempDir()
	for _, name := range []string{"a.pem", "b.pem"} {
		code, _, stderr := lighter(t, "attach", "--key", filepath.Join(keys, name), "--make-key", "--platform",
			"linux/amd64", ref)
		if code != 0 {
			t.Fatal(stderr)
		}
	}
	first := ""
	r.Spoil(func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method == http.MethodDelete && first == "" {
			first = req.URL.Path
		}
		denied := req.Method == http.MethodDelete && req.URL.Path == first
		if denied {
			w.WriteHeader(http.StatusForbidden)
		}
		return denied
	})
	code, stdout, stderr := lighter(t, "attach", "--remove", "--platform", "linux/amd64", "--json", ref)
	var got attachResult
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != command.ExitFailed ||
		len(got.Indexes) != 1 || !strings.Contains(got.Failed, "403") {
		t.Errorf("exit %d, %q, %q, %v; want the failure, and the index that was removed", code, stdout, stderr, err)
	}
	code, stdout, stderr = lighter(t, "attach", "--list", "--platform", "linux/amd64", "--json", ref)
	var left attachResult
	if err := json.Unmarshal([]byte(stdout), &left); err != nil || code != 0 || len(left.Indexes) != 1 ||
		left.Indexes[0].Artifact == got.Indexes[0].Artifact {
		t.Errorf("exit %d, %q, %q, %v; want the other index", code, stdout, stderr, err)
	}
}

// The index that --to pushes to another repository is listed and removed there.
func TestAttachToAnotherRepository(t *testing.T) {
	r := registrytest.Start(t, true)
	ref, _ := pushPlatforms(t, r)
	key, to := filepath.Join(t.TempDir(), "key.pem"), r.Host+"/indexes"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--key", key, "--make-key", "--to", to, ref}, ": attached\n"},
		{[]string{"--list", "--to", to, ref}, "linux/amd64"},
		{[]string{"--list", ref}, "no attached index"},
		{[]string{"--remove", ref}, "no attached index"},
		{[]string{"--remove", "--key", key, "--to", to, ref}, "removed:\n"},
		{[]string{"--list", "--to", to, ref}, "no attached index"},
	} {
		args := append([]string{"attach", "--platform", "linux/amd64"}, c.args...)
		if code, stdout, stderr := lighter(t, args...); code != 0 || !strings.Contains(stdout, c.want) {
			t.Errorf("lighter %s: exit %d, %q, %q; want %q", strings.Join(args, " "), code, stdout, stderr, c.want)
		}
	}
}

// --make-key makes a key that only its owner can read, and never replaces a file: not even one that
// another command makes at the same time.
func TestMakeKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key.pem")
	_, err := signingKeys(path, false)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "--make-key") {
		t.Errorf("a missing key: %v, want %v, and how it is made", err, fs.ErrNotExist)
	}
	made, err := signingKeys(path, true)
	info, statErr := os.Stat(path)
	if err != nil || statErr != nil || len(made) != 1 || info.Mode().Perm() != 0o600 {
		t.Fatalf("made %d keys, %v, %v, want one that only its owner can read", len(made), err, statErr)
	}
	if again, err := signingKeys(path, true); err != nil || len(again) != 1 || !again[0].Equal(made[0]) {
		t.Errorf("the key of an existing file: %v, want the same one", err)
	}
	if _, err := makeSigningKey(path); !errors.Is(err, fs.ErrExist) { // the file was made after it was looked for
		t.Errorf("make a key in place of another one: %v, want %v", err, fs.ErrExist)
	}
	if kept, err := signingKeys(path, false); err != nil || !kept[0].Equal(made[0]) {
		t.Errorf("the key is another one now: %v", err)
	}
	link, target := filepath.Join(t.TempDir(), "link"), filepath.Join(t.TempDir(), "target")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if _, err := signingKeys(link, true); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a link to nothing: %v, want %v", err, fs.ErrExist)
	}
}
