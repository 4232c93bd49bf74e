//go:build e2e

package commands

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"lighter/wire"
)

func TestAddOfALayout(t *testing.T) {
	one, two := makeImage(t, "linux/amd64", "one"), makeImage(t, "linux/amd64", "two")
	alone := writeLayout(t, map[string]v1.Image{"latest": one})
	both := writeLayout(t, map[string]v1.Image{"1": one, "2": two})
	if out := good(t, lighter, "add", "oci:"+alone, "layout/alone:1"); out != "layout/alone:1 "+digestOf(t,
		one)+" linux/amd64 ready\n" {
		t.Errorf("add printed %q, want the name, digest, platform and state", out)
	}
	good(t, lighter, "add", "oci:"+both+":2", "layout/two")
	if got := images(t, "layout/two:latest"); len(got) != 1 || got[0].Digest != digestOf(t, two) ||
		got[0].State != wire.StateReady {
		t.Errorf("images layout/two:latest: got %+v, want one that is ready, with digest %s", got, digestOf(t, two))
	}
	run(t, nil, lighter, "add", "oci:"+both, "layout/both:1").bad(t, 2, "several images", "oci:"+both+":TAG")
	run(t, nil, lighter, "add", "oci:"+both+":3", "layout/both:1").bad(t, 2, `no image "3"`)
	run(t, nil, lighter, "add", "oci:"+alone).bad(t, 2, "add a NAME")
	good(t, lighter, "add", "oci:"+alone, "layout/digest@"+digestOf(t, one))
	if got := images(t, "layout/digest@"+digestOf(t, one)); len(got) != 1 || got[0].State != wire.StateReady {
		t.Errorf("images layout/digest with the digest: got %+v, want one that is ready", got)
	}
	run(t, nil, lighter, "add", "oci:"+alone, "layout/digest@"+digestOf(t, two)).bad(t, 2, digestOf(t, one))
	run(t, nil, lighter, "add", "oci:"+alone, "Upper/case:1").bad(t, 2, "lower case")
}

func TestAddOfAnArchive(t *testing.T) {
	image := makeImage(t, "linux/amd64", "archive")
	file := writeArchive(t, "tools/archive:7", image)
	r := run(t, nil, lighter, "add", "--json", "docker-archive:"+file)
	var printed []wire.Image
	if err := json.Unmarshal([]byte(r.stdout), &printed); err != nil || r.code != 0 {
		t.Fatalf("add --json: exit %d (%v), want 0 and JSON: %s%s", r.code, err, r.stdout, r.stderr)
	}
	if len(printed) != 1 || printed[0].Name != "tools/archive:7" || printed[0].State != wire.StateReady ||
		printed[0].Tree == "" {
		t.Errorf("add --json printed %+v, want tools/archive:7, which is ready and has a tree", printed)
	}
	// The layer in the hub has the diffID of the archive's layer.
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	var found []wire.Inspection
	if err := json.Unmarshal([]byte(good(t, lighter, "inspect", "--json", "tools/archive:7")), &found); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || len(found[0].Layers) != 1 || found[0].Layers[0].DiffID != config.RootFS.DiffIDs[0].String() {
		t.Errorf("inspect printed %+v, want one image with the layer %s", found, config.RootFS.DiffIDs[0])
	}
	good(t, lighter, "add", "docker-archive:"+file, "other/name:1")
	if got := images(t, "other/name:1"); len(got) != 1 || got[0].Digest != printed[0].Digest {
		t.Errorf("images other/name:1: got %+v, want one with digest %s", got, printed[0].Digest)
	}
	notArchive := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(notArchive, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, nil, lighter, "add", "docker-archive:"+notArchive, "a:1").bad(t, 2, "not a docker archive")
}

func TestAddOfOnePlatform(t *testing.T) {
	index := makeIndex(t, "platforms", "linux/amd64", "linux/arm64", "linux/arm/v7")
	r := startRegistry(t, plainHTTP, nil)
	r.push(t, "multi", index)
	source := "docker://" + r.host + "/multi:1"
	out := good(t, lighter, "add", "--platform", "linux/arm64", source, "multi:1")
	if !strings.Contains(out, " linux/arm64 ready\n") || strings.Contains(out, "amd64") {
		t.Errorf("add printed %q, want only linux/arm64, ready", out)
	}
	for _, i := range images(t, "multi:1") {
		if i.Platform == "linux/amd64" {
			t.Errorf("an image of another platform was added: %+v", i)
		}
	}
	if raw := good(t, "skopeo", "inspect", "--raw", "--tls-verify=false",
		"docker://"+hubAddress+"/multi:1"); digestOfBytes(raw) != digestOf(t, index) {
		t.Errorf("the hub's index is %s, want digest %s", raw, digestOf(t, index))
	}
	// A layout of several platforms is pushed as a whole. Only the requested platform becomes
	// ready.
	layout := filepath.Join(t.TempDir(), "layout")
	good(t, "skopeo", "copy", "--quiet", "--all", "--src-tls-verify=false", "docker://"+r.host+"/multi:1",
		"oci:"+layout+":1")
	good(t, lighter, "add", "--platform", "linux/arm64", "oci:"+layout, "multi/layout:1")
	for _, i := range images(t, "multi/layout:1") {
		if (i.State == wire.StateReady) != (i.Platform == "linux/arm64") {
			t.Errorf("the image for %s is %s, want only linux/arm64 ready", i.Platform, i.State)
		}
	}
	// The default is the hub's configured platform, which is that of this machine.
	if out := good(t, lighter, "add", source, "here:1"); !strings.Contains(out, " linux/amd64 ready\n") ||
		strings.Contains(out, "arm") {
		t.Errorf("add printed %q, want only linux/amd64, ready", out)
	}
	run(t, nil, lighter, "add", "--platform", "linux/s390x", source, "none:1").bad(t, 2, "linux/s390x", "linux/arm64")
	run(t, nil, lighter, "add", "--platform", "arm64", source, "none:1").bad(t, 2, "OS/ARCH")
}

// add prints its progress as bars on a terminal, and otherwise as lines.
func TestProgressIsShown(t *testing.T) {
	layout := writeLayout(t, map[string]v1.Image{"1": makeImage(t, "linux/amd64", "progress")})
	r := run(t, nil, lighter, "add", "oci:"+layout, "progress:1")
	if r.code != 0 || !strings.Contains(r.stderr, "push progress:1  ") || strings.Contains(r.stderr, "\x1b") {
		t.Errorf("add without a terminal: exit %d, want 0 and lines of progress: %q", r.code, r.stderr)
	}
	for _, line := range strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n") {
		if f := strings.Fields(line); len(f) != 4 { // step, item, number, unit
			t.Errorf("got the line of progress %q, want step, item, number and unit", line)
		}
	}
	layout = writeLayout(t, map[string]v1.Image{"1": makeImage(t, "linux/amd64", "progress on a terminal")})
	r = run(t, nil, "script", "--quiet", "--return", "--command",
		"stty cols 100 rows 20; "+lighter+" add oci:"+layout+" progress:2", "/dev/null")
	if r.code != 0 || !strings.Contains(r.stdout, "push progress:2") || !strings.Contains(r.stdout, "[==") ||
		!strings.Contains(r.stdout, " ready\r\n") {
		t.Errorf("add on a terminal: exit %d, want 0, bars of progress and the result: %q", r.code, r.stdout)
	}
	// After a failure, the last line on the terminal is the error.
	r = run(t, nil, "script", "--quiet", "--return", "--command",
		"stty cols 100 rows 20; "+lighter+" add docker://127.0.0.1:1/a:1", "/dev/null")
	if lines := strings.Split(strings.TrimSpace(r.stdout), "\r\n"); r.code != 1 ||
		!strings.HasPrefix(lines[len(lines)-1], "lighter: ") {
		t.Errorf("failing add on a terminal: exit %d, want 1, and the error as the last line: %q", r.code, r.stdout)
	}
}

// If the user lacks a permission, a command prints which file or flag is concerned. Commands that
// only read from a hub need no permission.
func TestNoRights(t *testing.T) {
	nobody := []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", lighter}
	as := func(args ...string) result { return run(t, nil, append(nobody, args...)...) }
	as("hub", "--root", filepath.Join(filepath.Dir(hubRoot), "theirs"), "--listen", "127.0.0.1:7199").bad(t, 1,
		"permission denied", "--root")
	as("hub", "--root", hubRoot, "--listen", "127.0.0.1:7199").bad(t, 1, "permission denied", "--root")
	run(t, nil, lighter, "hub", "--root", hubRoot, "--listen", "127.0.0.1:7199").bad(t, 1,
		"another hub runs in "+hubRoot)
	secret := writeLayout(t, map[string]v1.Image{"1": makeImage(t, "linux/amd64", "secret")})
	if err := os.Chmod(secret, 0o700); err != nil {
		t.Fatal(err)
	}
	as("add", "oci:"+secret, "secret:1").bad(t, 2, "permission denied", secret)
	if r := as("images"); r.code != 0 {
		t.Errorf("images as another user: exit %d, want 0: %s", r.code, r.stderr)
	}
}

// If an argument is wrong, the error names it. If a host cannot be reached, the error names the
// host.
func TestWrongArguments(t *testing.T) {
	run(t, nil, lighter, "add", "docker://127.0.0.1:1/a:1").bad(t, 1, "127.0.0.1:1", "refused")
	run(t, nil, lighter, "add", "docker://"+foreignIP+":1/a:1").bad(t, 1, foreignIP)
	run(t, nil, lighter, "rm", "not/there:1").bad(t, 1, "not/there:1")
	run(t, nil, lighter, "verify", "not/there:1").bad(t, 1, "not/there:1")
	run(t, nil, lighter, "inspect", "Not/There:1").bad(t, 2, "lower case")
	run(t, []string{"LIGHTER_HUB=http://127.0.0.1:1"}, lighter, "images").bad(t, 1, "127.0.0.1:1")
	run(t, nil, lighter, "images", "--hub", "http://"+foreignIP+":1").bad(t, 2, "--plain-http")
	run(t, nil, lighter, "images", "--domain", "other").bad(t, 1, "no domain")
}
