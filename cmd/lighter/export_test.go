package main

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/cmd/command"
	"lighter/format/chunk"
	"lighter/format/soci"
	"lighter/format/trace"
	"lighter/store/conversion"
	"lighter/test/testkit/golden"
	"lighter/test/testkit/layout"
)

// smallImage makes an OCI layout whose image has one layer with two files.
func smallImage(t *testing.T) (dir string) {
	t.Helper()
	return imageWith(t, []byte(strings.Repeat("0123456789abcdef", 10_000)))
}

// imageWith makes an OCI layout whose image has one layer, in which /usr/large has a content.
func imageWith(t *testing.T, large []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	layer, diffID, err := layout.WriteLayer(dir, func(l *layout.Layer) error {
		if err := l.File("etc/hello", []byte("hello\n")); err != nil {
			return err
		}
		return l.File("usr/large", large)
	})
	if err != nil {
		t.Fatal(err)
	}
	manifest, config := ocispec.Manifest{Layers: []ocispec.Descriptor{layer}}, ocispec.Image{}
	config.OS, config.Architecture, config.RootFS.Type = "linux", "amd64", "layers"
	config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, diffID)
	if err := layout.Write(dir, manifest, config); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The command prints the new image and its layers, or JSON, and what it has finished meanwhile. The
// digests depend on the version of the library that compresses.
func TestExport(t *testing.T) {
	first := filepath.Join(t.TempDir(), "first")
	if err := os.WriteFile(first, []byte("/usr/large\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 11<<20) // cannot be compressed
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	var text strings.Builder
	small := "oci:" + smallImage(t)
	for _, args := range [][]string{{"--format", "estargz", "--prioritize", first, small},
		{"--format", "zstdchunked", "--level", "19", "--jobs", "1", small},
		{"--format", "soci", "--prioritize", first, "oci:" + imageWith(t, noise)}} {
		to := "oci:" + t.TempDir() + ":new"
		args = append([]string{"export", "--to", to}, args...)
		code, stdout, stderr := lighter(t, args...)
		if code != 0 {
			t.Fatalf("lighter %s: exit %d, %q", strings.Join(args, " "), code, stderr)
		}
		text.WriteString(strings.ReplaceAll(stdout, to, "DESTINATION") + stderr)
		code, stdout, _ = lighter(t, append(args, "--json")...)
		var done conversion.Result
		if err := json.Unmarshal([]byte(stdout), &done); code != 0 || err != nil || done.Name != to ||
			len(done.Images) != 1 || len(done.Images[0].Layers) != 1 || done.Images[0].Layers[0].NewSize == 0 {
			t.Errorf("lighter export --json: exit %d, %v, %s", code, err, stdout)
		}
	}
	digests := regexp.MustCompile(`sha256:[0-9a-f]+`)
	golden.Compare(t, "export.txt", digests.ReplaceAllString(text.String(), "DIGEST"))
}

// Recorded starts are a list of what to fetch first. Of a large file, SOCI's list has only the part
// that was read.
func TestExportWithTraces(t *testing.T) {
	noise := make([]byte, 11<<20) // cannot be compressed
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	image, dir := "oci:"+imageWith(t, noise), t.TempDir()
	first, traces := filepath.Join(dir, "first"), filepath.Join(dir, "traces")
	recordings := []trace.Recording{{Starts: 1, Entries: []trace.Entry{{Path: "/usr/large", Length: 4096}}}}
	if err := errors.Join(os.WriteFile(first, []byte("usr/large\n"), 0o600),
		os.WriteFile(traces, trace.EncodeText(recordings), 0o600)); err != nil {
		t.Fatal(err)
	}
	export := func(format string, flags ...string) (to string, done conversion.Result) {
		t.Helper()
		to = t.TempDir()
		args := append([]string{"export", "--json", "--format", format, "--to", "oci:" + to, image}, flags...)
		code, stdout, stderr := lighter(t, args...)
		if err := json.Unmarshal([]byte(stdout), &done); err != nil || code != 0 {
			t.Fatalf("lighter export %s: exit %d, %v, %q", strings.Join(flags, " "), code, err, stderr)
		}
		return to, done
	}
	_, plain := export("estargz")
	_, byPaths := export("estargz", "--prioritize", first)
	if _, got := export("estargz", "--trace", traces); got.Digest != byPaths.Digest || got.Digest == plain.Digest {
		t.Errorf("with traces: image %s; want %s, as with a list of paths, and not %s", got.Digest, byPaths.Digest,
			plain.Digest)
	}
	to, done := export("soci", "--trace", traces)
	b, err := os.ReadFile(filepath.Join(to, "blobs", strings.ReplaceAll(done.Images[0].Index, ":", "/")))
	if err != nil {
		t.Fatal(err)
	}
	index, err := soci.DecodeIndex(b)
	if err != nil || index.Layers[0].Prefetch == nil {
		t.Fatalf("index %+v, %v, want a list of what to prefetch", index, err)
	}
	text, err := os.ReadFile(filepath.Join(to, "blobs/sha256", chunk.ID(index.Layers[0].Prefetch.Digest).String()))
	if err != nil {
		t.Fatal(err)
	}
	list, err := soci.DecodePrefetch(text, 3)
	if err != nil || !slices.Equal(list, []soci.Spans{{First: 0, Last: 0}}) {
		t.Errorf("the list is %v, %v, want the first of three spans", list, err)
	}
}

// What is wrong is said in one line, with exit code 2 for arguments and 1 for all else.
func TestExportRefuses(t *testing.T) {
	from, to := "oci:"+smallImage(t), "oci:"+t.TempDir()
	whole := slices.Clip([]string{"--to", to, "--format", "estargz"})
	for want, c := range map[string]struct {
		code int
		args []string
	}{
		"IMAGE is missing":      {command.ExitUsage, nil},
		"--format is missing":   {command.ExitUsage, []string{from, "--to", to}},
		"--to is missing":       {command.ExitUsage, []string{from, "--format", "estargz"}},
		`"nydus" is no format`:  {command.ExitUsage, []string{from, "--to", to, "--format", "nydus"}},
		"layers stay":           {command.ExitUsage, []string{from, "--to", to, "--format", "soci", "--level", "3"}},
		"SOCI cannot index":     {command.ExitFailed, []string{from, "--to", to, "--format", "soci"}},
		"want 1 to 9":           {command.ExitUsage, append(whole, from, "--level", "11")},
		"--jobs 0":              {command.ExitUsage, append(whole, from, "--jobs", "0")},
		"paths in /no":          {command.ExitUsage, append(whole, from, "--prioritize", "/no")},
		"recordings in /no":     {command.ExitUsage, append(whole, from, "--trace", "/no")},
		"no destination":        {command.ExitUsage, []string{from, "--to", "ftp://x", "--format", "estargz"}},
		"not an OCI layout":     {command.ExitUsage, append(whole, "oci:/no/such")},
		"not an image":          {command.ExitUsage, append(whole, "docker://A:")},
		"a/b/c/d":               {command.ExitUsage, append(whole, from, "--platform", "a/b/c/d")},
		"not for linux/s390x":   {command.ExitFailed, append(whole, from, "--platform", "linux/s390x")},
		"127.0.0.1:1/no/such:1": {command.ExitFailed, append(whole, "127.0.0.1:1/no/such:1")},
		"/no/such/dir":          {command.ExitFailed, append(whole, from, "--tmp", "/no/such/dir")},
	} {
		code, _, stderr := lighter(t, append([]string{"export"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("lighter export %s: exit %d, %q; want exit %d and %q in one line", strings.Join(c.args, " "),
				code, stderr, c.code, want)
		}
	}
}
