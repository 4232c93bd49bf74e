//go:build e2e

package commands

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/wire"
)

// `lighter rm` removes an image from the hub and from its registry. The same image can be pushed
// again.
func TestRm(t *testing.T) {
	pushImage(t, "taken/away", "rm")
	image := ready(t, "taken/away:1")
	chain := "/lighter/1/default/chains/" + image.Chain
	if res, _ := ask(t, "GET", chain, nil); res.StatusCode != 200 {
		t.Fatalf("GET %s of the pushed image: got %s, want 200", chain, res.Status)
	}
	if out := good(t, lighter, "rm", "taken/away:1"); out != "" {
		t.Errorf("rm printed %q, want nothing", out)
	}
	for _, path := range []string{chain, "/v2/taken/away/manifests/1"} {
		if res, _ := ask(t, "GET", path, nil); res.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s of the removed image: got %s, want 404", path, res.Status)
		}
	}
	if out := good(t, lighter, "images"); strings.Contains(out, "taken/away") {
		t.Errorf("images still lists the removed image: %s", out)
	}
	run(t, nil, lighter, "rm", "taken/away:1").bad(t, 1, "taken/away:1", "not found")
	pushImage(t, "taken/away", "rm")
	if again := ready(t, "taken/away:1"); again.Tree != image.Tree {
		t.Errorf("image that was pushed again: got %+v, want tree %s", again, image.Tree)
	}
}

// packs returns the set of the files in which the hub has its packs.
func packs(t *testing.T) map[string]bool {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(hubRoot, "objects/packs/*"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, path := range found {
		all[path] = true
	}
	return all
}

// `lighter verify` finds a flipped bit in a pack, and names the damaged file of the image.
func TestVerify(t *testing.T) {
	before := packs(t)
	pushImage(t, "to/verify", "verify this unique text")
	ready(t, "to/verify:1")
	if out := good(t, lighter, "verify", "to/verify:1"); out != "to/verify:1 is intact\n" {
		t.Errorf("verify printed %q, want that the image is intact", out)
	}
	var newPacks []string
	for path := range packs(t) {
		if !before[path] {
			newPacks = append(newPacks, path)
		}
	}
	if len(newPacks) != 1 {
		t.Fatalf("the image has the packs %q, want one", newPacks)
	}
	flip(t, newPacks[0])
	r := run(t, nil, lighter, "verify", "to/verify:1")
	if r.code != 3 || !strings.Contains(r.stdout, `file "/etc/large"`) ||
		!strings.Contains(r.stderr, "the image is damaged: ") {
		t.Errorf("verify with a flipped bit: exit %d, want 3 and the damaged file: %s%s", r.code, r.stdout, r.stderr)
	}
	r = run(t, nil, lighter, "verify", "--json", "to/verify:1")
	var found struct {
		Name     string
		Problems []string
	}
	if err := json.Unmarshal([]byte(r.stdout), &found); err != nil || r.code != 3 || found.Name != "to/verify:1" ||
		len(found.Problems) == 0 {
		t.Errorf("verify --json with a flipped bit: exit %d (%v), want 3 and problems: %s", r.code, err, r.stdout)
	}
	flip(t, newPacks[0])
	good(t, lighter, "verify", "to/verify:1")
}

// flip flips a bit in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// `lighter images` and `lighter inspect` show an image. Unique counts what only this image uses.
func TestImagesAndInspect(t *testing.T) {
	_, digest := pushImage(t, "listed/here", "listed")
	image := ready(t, "listed/here:1")
	var line string
	for _, l := range strings.Split(good(t, lighter, "images"), "\n") {
		if strings.HasPrefix(l, "listed/here:1 ") {
			line = l
		}
	}
	for _, word := range []string{digest[:19], "linux/amd64", "ready"} {
		if !strings.Contains(line, word) {
			t.Errorf("the line %q of images does not contain %q", line, word)
		}
	}
	if now := images(t, "listed/here:1"); len(now) != 1 || now[0].Unique == 0 || now[0].Blobs <= now[0].Size {
		t.Errorf("image: got %+v, want a unique size, and blobs larger than the size", now)
	}
	out := good(t, lighter, "inspect", "listed/here:1")
	for _, word := range []string{digest, image.Chain, image.Tree, "ed25519:", "LAYER"} {
		if !strings.Contains(out, word) {
			t.Errorf("inspect does not contain %q:\n%s", word, out)
		}
	}
	// If another image has the same files, both have the same unique size.
	pushImage(t, "listed/too", "listed")
	ready(t, "listed/too:1")
	if now := images(t, "listed/here:1"); now[0].Unique != images(t, "listed/too:1")[0].Unique {
		t.Errorf("image: got %+v, want the unique size of the other image", now)
	}
	if got := images(t, ""); len(got) < 2 || got[0].State == wire.StateActive {
		t.Errorf("all images: got %+v, want 2 at least", got)
	}
}
