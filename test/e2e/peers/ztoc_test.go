//go:build peers

package peers

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"lighter/format/deflate"
	"lighter/format/soci"
	"lighter/format/tree"
	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
)

// The zTOCs of a real layer, compressed by several programs, have the bytes of SOCI's.
func TestZTOCsAreThoseOfSOCI(t *testing.T) {
	blob, err := os.Open(layout.Blob(images.Dir("base"), images.Manifest(t, "base").Layers[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := blob.Close(); err != nil {
			t.Error(err)
		}
	}()
	plain, err := io.ReadAll(deflate.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	third := len(plain) / 3
	members := append(piped(t, plain[:third], "gzip", "-1"), piped(t, nil, "gzip")...)
	members = append(members, piped(t, plain[third:2*third+1], "pigz", "-9")...)
	members = append(members, piped(t, plain[2*third+1:], "gzip", "-6")...)
	for name, layer := range map[string][]byte{
		"gzip -1": piped(t, plain, "gzip", "-1"), "gzip -9": piped(t, plain, "gzip", "-9"),
		"pigz": piped(t, plain, "pigz"), "pigz -i": piped(t, plain, "pigz", "-i", "-b", "64"),
		"members": members, "members by pigz": append(bytes.Clone(members), piped(t, make([]byte, 1<<20), "pigz")...),
	} {
		sameZTOC(t, name, soci.Gzip, layer, soci.DefaultSpanSize)
		sameZTOC(t, name, soci.Gzip, layer, 300_000)
	}
	sameZTOC(t, "plain", soci.Uncompressed, plain, soci.DefaultSpanSize)
	sameZTOC(t, "plain", soci.Uncompressed, plain, 300_000)
}

// sameZTOC compares the zTOCs of a layer.
func sameZTOC(t *testing.T, name string, compression soci.Compression, layer []byte, spanSize int64) {
	t.Helper()
	got, err := soci.Make(bytes.NewReader(layer), soci.Options{Compression: compression, SpanSize: spanSize,
		Tool: "AWS SOCI CLI v0.2"})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if _, err := soci.Decode(got, tree.Limits{}); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	dir := t.TempDir()
	from, to := filepath.Join(dir, "layer"), filepath.Join(dir, "ztoc")
	if err := os.WriteFile(from, layer, 0o644); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), tool(t, "soci"), "ztoc", "--compression", compression.String(), "--span-size",
		strconv.FormatInt(spanSize, 10), from, to)
	c.Env = append(os.Environ(), "TZ=UTC")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
	want, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s, spans of %d: got %d bytes, SOCI makes %d, or they differ", name, spanSize, len(got), len(want))
	}
}

// piped returns what a command makes of its standard input.
func piped(t *testing.T, in []byte, command ...string) []byte {
	t.Helper()
	c := exec.CommandContext(t.Context(), command[0], command[1:]...)
	c.Stdin = bytes.NewReader(in)
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	return out
}
