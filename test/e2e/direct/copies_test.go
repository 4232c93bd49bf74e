//go:build e2e

package direct

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/distribution"
	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/registrytest"
	"lighter/test/testkit/site"
	"lighter/test/testkit/workdir"
)

// tool runs a tool that copies images: one that test/setup has built, or Debian's skopeo.
func tool(t *testing.T, argv ...string) string {
	t.Helper()
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(work, "tools", argv[0])
	if argv[0] == "skopeo" {
		program = "skopeo"
	}
	cmd := exec.CommandContext(t.Context(), program, argv[1:]...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "DOCKER_CONFIG="+home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// skopeo runs skopeo with registries without TLS.
func skopeo(t *testing.T, command string, args ...string) {
	t.Helper()
	tool(t, append([]string{"skopeo", command, "--insecure-policy", "--src-tls-verify=false",
		"--dest-tls-verify=false"}, args...)...)
}

// regctl copies an image with regctl.
func regctl(t *testing.T, from, to string, flags ...string) {
	t.Helper()
	argv := []string{"regctl"}
	for _, ref := range []string{from, to} {
		host, _, _ := strings.Cut(ref, "/")
		argv = append(argv, "--host", "reg="+host+",tls=disabled")
	}
	tool(t, append(append(argv, "image", "copy"), append(flags, from, to)...)...)
}

// withoutTag returns the repository of a reference that ends with :latest.
func withoutTag(ref string) string { return strings.TrimSuffix(ref, ":latest") }

// copiers are the ways to copy an image with all its platforms. takes says whether attached indexes
// are copied, too: from a registry that has the list of them under a tag, and from one with the
// referrers API.
var copiers = []struct {
	name  string
	copy  func(t *testing.T, from, to string)
	takes [2]bool
}{
	{"skopeo copy", func(t *testing.T, from, to string) {
		skopeo(t, "copy", "--all", "docker://"+from, "docker://"+to)
	}, [2]bool{false, false}},
	{"skopeo sync", func(t *testing.T, from, to string) { // has the repository's last part as its last part
		repository := withoutTag(to)
		skopeo(t, "sync", "--all", "--src", "docker", "--dest", "docker", withoutTag(from),
			repository[:strings.LastIndex(repository, "/")])
	}, [2]bool{true, false}},
	{"crane copy", func(t *testing.T, from, to string) { tool(t, "crane", "copy", from, to) }, [2]bool{false, false}},
	{"crane copy --all-tags", func(t *testing.T, from, to string) {
		tool(t, "crane", "copy", "--all-tags", withoutTag(from), withoutTag(to))
	}, [2]bool{true, false}},
	{"oras cp", func(t *testing.T, from, to string) {
		tool(t, "oras", "cp", "--from-plain-http", "--to-plain-http", from, to)
	}, [2]bool{false, false}},
	{"oras cp -r", func(t *testing.T, from, to string) {
		tool(t, "oras", "cp", "-r", "--from-plain-http", "--to-plain-http", from, to)
	}, [2]bool{true, true}},
	{"regctl image copy", func(t *testing.T, from, to string) { regctl(t, from, to) }, [2]bool{false, false}},
	{"regctl image copy --digest-tags", func(t *testing.T, from, to string) { regctl(t, from, to, "--digest-tags") },
		[2]bool{true, false}},
	{"regctl image copy --referrers", func(t *testing.T, from, to string) { regctl(t, from, to, "--referrers") },
		[2]bool{true, true}},
}

// pushPlatforms pushes an image of two platforms.
func pushPlatforms(t *testing.T, ref string) {
	t.Helper()
	index := v1.ImageIndex(mutate.IndexMediaType(empty.Index, ocispec.MediaTypeImageIndex))
	for _, arch := range []string{"amd64", "arm64"} {
		dir := t.TempDir()
		base, made := filepath.Join(dir, "base"), filepath.Join(dir, "made")
		platform := ocispec.Platform{OS: "linux", Architecture: arch}
		err := errors.Join(os.MkdirAll(filepath.Join(base, "blobs/sha256"), 0o700),
			layout.Write(base, ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2},
				MediaType: ocispec.MediaTypeImageManifest},
				ocispec.Image{Platform: platform, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}}}),
			layout.Extend(base, made, func(l *layout.Layer) error { return l.File("program", []byte(arch)) }))
		if err != nil {
			t.Fatal(err)
		}
		image, err := images.Open(made)
		if err != nil {
			t.Fatal(err)
		}
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
}

// shown is what lighter attach --list --json prints.
type shown struct {
	Indexes []struct{ Platform, Manifest, Artifact string }
	Refused string
}

// listed lists the attached indexes of an image, for all platforms.
func listed(t *testing.T, ref string) (s shown) {
	t.Helper()
	out := lighter(t, "attach", "--list", "--platform", "all", "--json", ref)
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// attachAll attaches an index for each of two platforms, and returns the output.
func attachAll(t *testing.T, key, ref string) string {
	t.Helper()
	return lighter(t, "attach", "--key", key, "--platform", "all", ref)
}

// wantAttached returns an error unless an image has two indexes, and nothing is said to be lost.
func wantAttached(t *testing.T, what, ref string) (is bool) {
	t.Helper()
	s := listed(t, ref)
	if is = len(s.Indexes) == 2 && s.Refused == ""; !is {
		t.Errorf("%s: listed %+v, want two indexes and nothing else", what, s)
	}
	return is
}

// registriesOfBothKinds starts a registry without the referrers API, which has lists under tags,
// and one that has the API.
func registriesOfBothKinds(t *testing.T) (hosts [2]string) {
	t.Helper()
	return [2]string{distribution.Start(t), registrytest.Start(t, true).Host}
}

// Copying tools take attached indexes along or leave them behind, as docs/decisions/attached.md
// says. lighter attach then makes what is missing.
func TestCopies(t *testing.T) {
	key, _ := makeKey(t)
	hosts := registriesOfBothKinds(t)
	for i, from := range hosts {
		source := from + "/source/image:latest"
		pushPlatforms(t, source)
		attachAll(t, key, source)
		wantAttached(t, "the source", source)
		for j, to := range hosts {
			for n, c := range copiers {
				what := fmt.Sprintf("%s from registry %d to registry %d", c.name, i, j)
				target := fmt.Sprintf("%s/copy%d%d/image:latest", to, i, n)
				c.copy(t, source, target)
				state := ": attached\n"
				if c.takes[i] {
					wantAttached(t, what, target)
					state = ": unchanged\n"
				} else if s := listed(t, target); len(s.Indexes) > 0 || s.Refused != "" {
					t.Errorf("%s: listed %+v, want that no index is copied", what, s)
				}
				if out := attachAll(t, key, target); strings.Count(out, state) != 2 {
					t.Errorf("%s: attached again: %s, want%s", what, out, state)
				}
				wantAttached(t, what+", attached again", target)
			}
		}
	}
}

// A tool that copies one image of each index leaves the artifact in place of the list. So does
// skopeo, without --all.
func TestCopyOfTheListAsAnImage(t *testing.T) {
	key, _ := makeKey(t)
	hosts := registriesOfBothKinds(t)
	source := hosts[0] + "/source/image:latest"
	pushPlatforms(t, source)
	attachAll(t, key, source)
	for _, host := range hosts {
		target := host + "/copy/image:latest"
		skopeo(t, "copy", "--all", "docker://"+source, "docker://"+target)
		for _, tag := range tagsOf(t, source) {
			if tag != "latest" {
				skopeo(t, "copy", "docker://"+withoutTag(source)+":"+tag, "docker://"+withoutTag(target)+":"+tag)
			}
		}
		wantAttached(t, host, target)
		if out := attachAll(t, key, target); strings.Count(out, ": unchanged\n") != 2 {
			t.Errorf("%s: attached again: %s, want that nothing is changed", host, out)
		}
		other, _ := makeKey(t)
		attachAll(t, other, target)
		if s := listed(t, target); len(s.Indexes) != 4 || s.Refused != "" {
			t.Errorf("%s: with a second key: listed %+v, want four indexes", host, s)
		}
	}
}

// An image whose manifest a tool has changed is another image. It gets an index of its own.
func TestCopyWithAnotherManifest(t *testing.T) {
	key, _ := makeKey(t)
	for _, host := range registriesOfBothKinds(t) {
		source, target := host+"/source/image:latest", host+"/docker/image:latest"
		pushPlatforms(t, source)
		attachAll(t, key, source)
		skopeo(t, "copy", "--all", "--format", "v2s2", "docker://"+source, "docker://"+target)
		if s := listed(t, target); len(s.Indexes) > 0 || s.Refused != "" {
			t.Errorf("%s: listed %+v, want none", host, s)
		}
		attachAll(t, key, target)
		wantAttached(t, host, target)
	}
}

// remove makes a registry lose a manifest or a blob.
func remove(t *testing.T, ref, path string) {
	t.Helper()
	host, repository, _ := strings.Cut(withoutTag(ref), "/")
	at := "http://" + host + "/v2/" + repository + "/" + path
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusAccepted {
		t.Fatalf("delete %s of %s: %s", path, ref, res.Status)
	}
}

// What a registry loses of attached indexes is said and made again. A list under a tag names what
// is gone until then; the referrers API does not.
func TestLostIndexes(t *testing.T) {
	key, _ := makeKey(t)
	for i, host := range registriesOfBothKinds(t) {
		ref := host + "/lost/image:latest"
		pushPlatforms(t, ref)
		attachAll(t, key, ref)
		gone := listed(t, ref).Indexes[0]
		remove(t, ref, "manifests/"+gone.Artifact)
		s := listed(t, ref)
		if len(s.Indexes) != 1 || s.Indexes[0].Platform == gone.Platform ||
			(i == 0) != strings.Contains(s.Refused, gone.Artifact) {
			t.Errorf("%s: listed %+v, want the other index, and what the list has lost", host, s)
		}
		out := attachAll(t, key, ref)
		if strings.Count(out, ": attached\n") != 1 || strings.Count(out, ": unchanged\n") != 1 ||
			(i == 0) != strings.Contains(out, "had lost: artifact "+gone.Artifact) {
			t.Errorf("%s: attached again: %s", host, out)
		}
		wantAttached(t, host, ref)

		artifact := listed(t, ref).Indexes[0].Artifact
		var m ocispec.Manifest
		err := json.Unmarshal([]byte(tool(t, "crane", "manifest", withoutTag(ref)+"@"+artifact)), &m)
		if err != nil {
			t.Fatal(err)
		}
		blob := m.Layers[len(m.Layers)-1].Digest.String()
		remove(t, ref, "blobs/"+blob)
		if s := listed(t, ref); len(s.Indexes) != 2 || !strings.Contains(s.Refused, blob) {
			t.Errorf("%s: listed %+v, want both indexes, and the lost blob %s", host, s, blob)
		}
		if out := attachAll(t, key, ref); strings.Count(out, ": replaced\n") == 0 || !strings.Contains(out, blob) {
			t.Errorf("%s: attached again: %s, want the lost blob %s", host, out, blob)
		}
		wantAttached(t, host, ref)
	}
}

// A copy of an image starts lazily if the tool has copied the index, and else after the index was
// attached again.
func TestStartOfACopy(t *testing.T) {
	key, public := makeKey(t)
	s := startWith(t, site.Options{Hubs: []string{}}, "attached_keys = [\""+public+"\"]")
	ref := extended(t, s, "plain/mine", "mine")
	lighter(t, "attach", "--plain-http", "--key", key, ref)
	for _, c := range copiers {
		switch c.name {
		case "skopeo copy", "skopeo sync", "oras cp -r":
		default:
			continue
		}
		target := site.Reference(strings.ReplaceAll(c.name, " ", "") + "/mine")
		c.copy(t, ref, target)
		if !c.takes[0] {
			lighter(t, "attach", "--plain-http", "--key", key, target)
		}
		if moved := pull(t, s, target); moved > images.Size(t, "base")/20 {
			t.Errorf("%s: the pull received %d bytes, want the index only", c.name, moved)
		}
		wantLazy(t, s, true)
		if out := run(t, s, site.Lighter, target, "cat", "/opt/mine"); out != "mine" {
			t.Errorf("%s: got %q", c.name, out)
		}
		if err := s.Machine.RemoveImage(t.Context(), target); err != nil {
			t.Fatal(err)
		}
	}
}
