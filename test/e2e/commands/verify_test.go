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

func TestRm(t *testing.T) {
	pushed(t, "taken/away", "rm")
	image := ready(t, "taken/away:1")
	chain := "/lighter/1/default/chains/" + image.Chain
	if res, _ := ask(t, "GET", chain, nil); res.StatusCode != 200 {
		t.Fatalf("before: %s", res.Status)
	}
	if out := good(t, lighter, "rm", "taken/away:1"); out != "" {
		t.Errorf("it printed %q", out)
	}
	for _, path := range []string{chain, "/v2/taken/away/manifests/1", "/v2/taken/away/manifests/" + image.Digest} {
		if res, _ := ask(t, "GET", path, nil); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s still exists: %s", path, res.Status)
		}
	}
	if out := good(t, lighter, "images"); strings.Contains(out, "taken/away") {
		t.Errorf("the removed image is listed: %s", out)
	}
	run(t, nil, lighter, "rm", "taken/away:1").bad(t, 1, "taken/away:1", "not found")
	// Another push restores it.
	pushed(t, "taken/away", "rm")
	if again := ready(t, "taken/away:1"); again.Tree != image.Tree {
		t.Errorf("%+v, was %+v", again, image)
	}
}

// packs lists the files of the hub's packs.
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

func TestVerify(t *testing.T) {
	before := packs(t)
	pushed(t, "to/verify", "verify this unique text")
	ready(t, "to/verify:1")
	if out := good(t, lighter, "verify", "to/verify:1"); out != "to/verify:1 is intact\n" {
		t.Errorf("it printed %q", out)
	}
	var fresh []string
	for path := range packs(t) {
		if !before[path] {
			fresh = append(fresh, path)
		}
	}
	if len(fresh) != 1 {
		t.Fatalf("the image made the packs %q", fresh)
	}
	flip(t, fresh[0])
	r := run(t, nil, lighter, "verify", "to/verify:1")
	if r.code != 3 || !strings.Contains(r.stdout, `file "/etc/large"`) ||
		!strings.Contains(r.stderr, "the image is damaged: ") {
		t.Errorf("verify with a flipped byte: exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	r = run(t, nil, lighter, "verify", "--json", "to/verify:1")
	var said struct {
		Name     string
		Problems []string
	}
	if err := json.Unmarshal([]byte(r.stdout), &said); err != nil || r.code != 3 || said.Name != "to/verify:1" ||
		len(said.Problems) == 0 {
		t.Errorf("exit %d, %v: %s", r.code, err, r.stdout)
	}
	flip(t, fresh[0])
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

// The table of images, and the size that only one image uses.
func TestImagesAndInspect(t *testing.T) {
	_, digest := pushed(t, "listed/here", "listed")
	image := ready(t, "listed/here:1")
	var line string
	for _, l := range strings.Split(good(t, lighter, "images"), "\n") {
		if strings.HasPrefix(l, "listed/here:1 ") {
			line = l
		}
	}
	for _, word := range []string{digest[:19], "linux/amd64", "ready"} {
		if !strings.Contains(line, word) {
			t.Errorf("%q does not contain %q", line, word)
		}
	}
	if now := images(t, "listed/here:1"); len(now) != 1 || now[0].Unique == 0 || now[0].Blobs <= now[0].Size {
		t.Errorf("%+v", now)
	}
	out := good(t, lighter, "inspect", "listed/here:1")
	for _, word := range []string{digest, image.Chain, image.Tree, "ed25519:", "LAYER"} {
		if !strings.Contains(out, word) {
			t.Errorf("inspect does not contain %q:\n%s", word, out)
		}
	}
	// With another image of the same file, the file counts for neither.
	pushed(t, "listed/too", "listed")
	ready(t, "listed/too:1")
	if now := images(t, "listed/here:1"); now[0].Unique != images(t, "listed/too:1")[0].Unique {
		t.Errorf("%+v", now)
	}
	if got := images(t, ""); len(got) < 2 || got[0].State == wire.StateActive {
		t.Errorf("%+v", got)
	}
}
