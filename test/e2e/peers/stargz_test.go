//go:build peers

package peers

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"lighter/test/testkit/site"
)

// converted is the converter's report of an image.
type converted struct {
	Layers int
	First  int   // number of files that are at the beginning of layers, so that they are prefetched
	Bytes  int64 // compressed size of the layers
}

// convert converts the image base, and pushes the result under the name to. args are further
// arguments of the converter.
func convert(t *testing.T, to string, args ...string) (image converted) {
	t.Helper()
	args = append(append([]string{"convert", "--plain-http"}, args...), site.Reference("base"), site.Reference(to))
	cmd := exec.CommandContext(t.Context(), tool(t, "stargz"), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &image)
	}
	if err != nil {
		t.Fatalf("convert %q: %v: %s", args, err, out)
	}
	return image
}

func TestStargzIsLazy(t *testing.T) {
	// By default the snapshotter fetches the whole image in the background.
	settings := write(t, "no_background_fetch = true\n")
	s, whole := start(t, site.Peer{Snapshotter: "stargz",
		Command: []string{tool(t, "stargz"), "snapshotter", "--root", "{root}",
			"--address", "{socket}", "--config", settings, "--plain-http", "{registry}"}})
	store := t.TempDir()
	// The paths of a trace have no symlinks. In Debian, /bin is a symlink to /usr/bin.
	trace := write(t,
		"lighter trace 1\nstarts 1\n0 0 4096 /usr/bin/true\n2 0 4096 /no/such/file\n2 0 4096 /usr/bin/perl\n"+
			"3 4096 4096 /usr/bin/true\n")
	for _, kind := range []string{"estargz", "zstdchunked"} {
		t.Run(kind, func(t *testing.T) {
			plain := convert(t, kind, "--kind", kind, "--store", store)
			traced := convert(t, kind+"-traced", "--kind", kind, "--store", store, "--trace", trace)
			if plain.First != 0 || traced.First != 2 || plain.Layers != 1 || plain.Bytes < whole/2 ||
				traced.Bytes < whole/2 {
				t.Fatalf("converted without a trace: %+v, with a trace: %+v, want one layer, 0 and 2 prefetched "+
					"files, and half the size of the original at least", plain, traced)
			}
			bytes := pullAndRun(t, s, "stargz", kind)
			if bytes > whole/8 {
				t.Errorf("pulling and running `true` received %d of %d bytes, want an eighth at most", bytes, whole)
			}
			// The trace has perl, so perl is prefetched although `true` does not need it.
			if more := pullAndRun(t, s, "stargz", kind+"-traced"); more < bytes+1<<20 || more > whole/4 {
				t.Errorf("received %d bytes with a trace and %d without, want at least %d more with a trace, and "+
					"a quarter of the image (%d) at most", more, bytes, 1<<20, whole)
			}
		})
	}
}
