//go:build e2e

package commands

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"lighter/wire"
)

// ask sends a request to a path of the hub, or to a URL, and returns the response and its body.
// header has the names of header fields, each followed by its value.
func ask(t *testing.T, method, path string, body []byte, header ...string) (*http.Response, []byte) {
	t.Helper()
	if !strings.HasPrefix(path, "http://") {
		path = "http://" + hubAddress + path
	}
	req, err := http.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, b
}

// newStorage makes a storage directory for podman. Its path is short, as podman requires.
func newStorage(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "podman-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// podman runs podman with a storage directory.
func podman(t *testing.T, storage string, command string, args ...string) string {
	t.Helper()
	return good(t, append([]string{"podman", "--runtime", "runc", "--root", storage, "--runroot", storage + "r",
		"--storage-driver", "vfs", "--events-backend", "none", "--cgroup-manager", "cgroupfs", command}, args...)...)
}

func TestPodmanAndSkopeoPullWhatPodmanPushed(t *testing.T) {
	archive := writeArchive(t, "by/podman:1", makeImage(t, "linux/amd64", "podman"))
	storage, file := newStorage(t), filepath.Join(t.TempDir(), "digest")
	id := strings.TrimSpace(podman(t, storage, "pull", "--quiet", "docker-archive:"+archive))
	pushedRef := hubAddress + "/by/podman:1"
	podman(t, storage, "push", "--quiet", "--tls-verify=false", "--digestfile", file, id, pushedRef)
	digest, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if image := ready(t, "by/podman:1"); image.Digest != string(digest) {
		t.Errorf("digest in the hub: got %s, want %s, which podman pushed", image.Digest, digest)
	}
	// podman with an empty storage directory pulls the image, by tag and by digest.
	pulled := newStorage(t)
	for _, ref := range []string{pushedRef, hubAddress + "/by/podman@" + string(digest)} {
		if got := strings.TrimSpace(podman(t, pulled, "pull", "--quiet", "--tls-verify=false", ref)); got != id {
			t.Errorf("podman pulled %s: got ID %s, want %s", ref, got, id)
		}
	}
	if out := podman(t, pulled, "image", "inspect", "--format", "{{.Digest}}",
		pushedRef); strings.TrimSpace(out) != string(digest) {
		t.Errorf("podman pulled digest %s, want %s", strings.TrimSpace(out), digest)
	}
	copied := t.TempDir()
	good(t, "skopeo", "copy", "--quiet", "--src-tls-verify=false", "--preserve-digests", "docker://"+pushedRef,
		"dir:"+copied)
	manifest, err := os.ReadFile(filepath.Join(copied, "manifest.json"))
	if err != nil || digestOfBytes(string(manifest)) != string(digest) {
		t.Errorf("skopeo pulled digest %s (%v), want %s", digestOfBytes(string(manifest)), err, digest)
	}
}

// pushImage pushes an image of one layer to the hub, with the tag 1. It returns the digests of the
// layer and of the manifest. Images of the same text are the same.
func pushImage(t *testing.T, name, text string) (layer, manifest string) {
	t.Helper()
	image := makeImage(t, "linux/amd64", text)
	layout := writeLayout(t, map[string]v1.Image{"1": image})
	good(t, "skopeo", "copy", "--quiet", "--dest-tls-verify=false", "--preserve-digests", "oci:"+layout+":1",
		"docker://"+hubAddress+"/"+name+":1")
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	return digestOf(t, layers[0]), digestOf(t, image)
}

// The hub's registry answers HEAD requests and requests for ranges of blobs, and mounts blobs of
// other repositories. Clients use these parts of the distribution API.
func TestBlobsAndManifestsAreServedAsClientsAsk(t *testing.T) {
	layer, manifest := pushImage(t, "parts/of", "ranges and mounts")
	blob := "/v2/parts/of/blobs/" + layer
	_, whole := ask(t, "GET", blob, nil)
	if digestOfBytes(string(whole)) != layer {
		t.Fatalf("the blob of %d bytes has another digest than %s", len(whole), layer)
	}
	for _, path := range []string{blob, "/v2/parts/of/manifests/1", "/v2/parts/of/manifests/" + manifest} {
		_, body := ask(t, "GET", path, nil, "Accept", "application/vnd.oci.image.manifest.v1+json")
		res, headBody := ask(t, "HEAD", path, nil, "Accept", "application/vnd.oci.image.manifest.v1+json")
		if res.StatusCode != 200 || res.ContentLength != int64(len(body)) || len(headBody) != 0 ||
			res.Header.Get("Docker-Content-Digest") != digestOfBytes(string(body)) {
			t.Errorf("HEAD %s: got %s, length %d, %d bytes and the header %s; want 200, the length (%d) and the "+
				"digest of a GET, and no bytes", path, res.Status, res.ContentLength, len(headBody), res.Header,
				len(body))
		}
	}
	for byteRange, want := range map[string][]byte{"bytes=5-9": whole[5:10], "bytes=100-": whole[100:],
		"bytes=-7": whole[len(whole)-7:]} {
		if res, got := ask(t, "GET", blob, nil, "Range", byteRange); res.StatusCode != http.StatusPartialContent ||
			!bytes.Equal(got, want) {
			t.Errorf("range %s of the blob: got %s and %d bytes, want 206 and %d bytes", byteRange, res.Status,
				len(got), len(want))
		}
	}
	if res, _ := ask(t, "GET", blob, nil, "Range",
		"bytes=99999999-"); res.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("range behind the end of the blob: got %s, want 416", res.Status)
	}
	// A client mounts a blob from another repository. If the blob is missing there, an upload
	// begins.
	mount := "/v2/other/place/blobs/uploads/?from=parts/of&mount="
	if res, _ := ask(t, "POST", mount+layer, nil); res.StatusCode != http.StatusCreated {
		t.Errorf("mount a blob: got %s, want 201", res.Status)
	}
	if res, got := ask(t, "GET", "/v2/other/place/blobs/"+layer, nil); res.StatusCode != 200 ||
		!bytes.Equal(got, whole) {
		t.Errorf("the mounted blob: got %s and %d bytes, want 200 and %d bytes", res.Status, len(got), len(whole))
	}
	if res, _ := ask(t, "POST", mount+digestOfBytes("not there"), nil); res.StatusCode != http.StatusAccepted {
		t.Errorf("mount a missing blob: got %s, want 202", res.Status)
	}
	if res, _ := ask(t, "GET", "/v2/parts/of/blobs/"+digestOfBytes("not there"),
		nil); res.StatusCode != http.StatusNotFound {
		t.Errorf("a missing blob: got %s, want 404", res.Status)
	}
}

// A client uploads a blob in pieces. After each piece it asks how much has arrived, as it would
// after an interruption.
func TestBlobIsUploadedInPieces(t *testing.T) {
	blob := bytes.Repeat([]byte("piece"), 100_000)
	res, _ := ask(t, "POST", "/v2/in/pieces/blobs/uploads/", nil)
	for from := 0; from < len(blob); from += 200_000 {
		piece := blob[from:min(from+200_000, len(blob))]
		res, _ = ask(t, "PATCH", res.Header.Get("Location"), piece, "Content-Range",
			fmt.Sprintf("%d-%d", from, from+len(piece)-1))
		if res.StatusCode != http.StatusAccepted {
			t.Fatalf("upload the piece at %d: got %s, want 202", from, res.Status)
		}
		res, _ = ask(t, "GET", res.Header.Get("Location"), nil)
		if got, want := res.Header.Get("Range"), fmt.Sprintf("0-%d",
			from+len(piece)-1); res.StatusCode != http.StatusNoContent || got != want {
			t.Errorf("state of the upload: got %s and range %s, want 204 and %s", res.Status, got, want)
		}
	}
	res, _ = ask(t, "PUT", res.Header.Get("Location")+"&digest="+digestOfBytes(string(blob)), nil)
	if res.StatusCode != http.StatusCreated {
		t.Errorf("end the upload: got %s, want 201", res.Status)
	}
	if _, got := ask(t, "GET", "/v2/in/pieces/blobs/"+digestOfBytes(string(blob)), nil); !bytes.Equal(got, blob) {
		t.Errorf("the uploaded blob: got %d bytes, want the %d bytes of the pieces", len(got), len(blob))
	}
}

// The registry lists tags and repositories in pages, and deletes tags and manifests.
func TestListsOfTagsAndRepositories(t *testing.T) {
	_, manifest := pushImage(t, "lists/one", "lists")
	for _, to := range []string{"lists/one:2", "lists/one:3", "lists/two:1"} {
		good(t, "skopeo", "copy", "--quiet", "--src-tls-verify=false", "--dest-tls-verify=false",
			"docker://"+hubAddress+"/lists/one:1", "docker://"+hubAddress+"/"+to)
	}
	page := func(path string) (repositories, tags []string, next string) {
		res, b := ask(t, "GET", path, nil)
		var list struct{ Repositories, Tags []string }
		if err := json.Unmarshal(b, &list); err != nil || res.StatusCode != 200 {
			t.Fatalf("GET %s: got %s and %s, want 200 and a list", path, res.Status, b)
		}
		next, _, _ = strings.Cut(strings.TrimPrefix(res.Header.Get("Link"), "<"), ">")
		return list.Repositories, list.Tags, next
	}
	_, tags, next := page("/v2/lists/one/tags/list?n=2")
	if !slices.Equal(tags, []string{"1", "2"}) || next == "" {
		t.Errorf("first page of tags: got %q and the next page %q, want 1, 2 and a next page", tags, next)
	}
	if _, tags, next = page(next); !slices.Equal(tags, []string{"3"}) || next != "" {
		t.Errorf("last page of tags: got %q and the next page %q, want 3 and no next page", tags, next)
	}
	var all []string
	for next = "/v2/_catalog?n=2"; next != ""; {
		var some []string
		if some, _, next = page(next); len(some) > 2 {
			t.Errorf("page of repositories: got %q, want 2 at most", some)
		}
		all = append(all, some...)
	}
	if !slices.IsSorted(all) || !slices.Contains(all, "lists/one") || !slices.Contains(all, "lists/two") {
		t.Errorf("repositories: got %q, want them sorted, with lists/one and lists/two", all)
	}
	// If a tag is deleted, the other tags and their manifest stay.
	if res, _ := ask(t, "DELETE", "/v2/lists/one/manifests/2", nil); res.StatusCode != http.StatusAccepted {
		t.Errorf("delete a tag: got %s, want 202", res.Status)
	}
	if _, tags, _ = page("/v2/lists/one/tags/list"); !slices.Equal(tags, []string{"1", "3"}) {
		t.Errorf("tags after one was deleted: got %q, want 1 and 3", tags)
	}
	if got := images(t, "lists/one:2"); len(got) != 0 {
		t.Errorf("images of the deleted tag: got %+v, want none", got)
	}
	if got := ready(t, "lists/one:3"); got.Digest != manifest || got.State != wire.StateReady {
		t.Errorf("image of another tag: got %+v, want it ready, with digest %s", got, manifest)
	}
	// skopeo deletes the manifest from the repository lists/one, with all its tags there. The other
	// repository keeps its tag.
	good(t, "skopeo", "delete", "--tls-verify=false", "docker://"+hubAddress+"/lists/one:1")
	if got := append(images(t, "lists/one:1"), images(t, "lists/one:3")...); len(got) != 0 {
		t.Errorf("images of the deleted manifest: got %+v, want none", got)
	}
	ready(t, "lists/two:1")
}
