//go:build peers

package peers

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"lighter/test/testkit/site"
)

// made is the converter's report of an image.
type made struct {
	Layers, First int
	Bytes         int64
}

func convert(t *testing.T, to string, args ...string) (image made) {
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
	settings := write(t, "no_background_fetch = true\n") // by default it fetches the whole image in the background
	s, whole := start(t, site.Peer{Snapshotter: "stargz",
		Command: []string{tool(t, "stargz"), "snapshotter", "--root", "{root}",
			"--address", "{socket}", "--config", settings, "--plain-http", "{registry}"}})
	store := t.TempDir()
	// Debian's /bin is a symlink to /usr/bin.
	trace := write(t,
		"lighter trace 1\nstarts 1\n0 0 4096 /usr/bin/true\n2 0 4096 /no/such/file\n2 0 4096 /usr/bin/perl\n"+
			"3 4096 4096 /usr/bin/true\n")
	for _, kind := range []string{"estargz", "zstdchunked"} {
		t.Run(kind, func(t *testing.T) {
			plain := convert(t, kind, "--kind", kind, "--store", store)
			traced := convert(t, kind+"-traced", "--kind", kind, "--store", store, "--trace", trace)
			if plain.First != 0 || traced.First != 2 || plain.Layers != 1 || plain.Bytes < whole/2 ||
				traced.Bytes < whole/2 {
				t.Fatalf("converted without a trace: %+v, with a trace: %+v", plain, traced)
			}
			bytes := pullAndRun(t, s, "stargz", kind)
			if bytes > whole/8 {
				t.Errorf("pulling and running `true` received %d of %d bytes", bytes, whole)
			}
			// perl is in the trace, so it is prefetched although true does not need it.
			if more := pullAndRun(t, s, "stargz", kind+"-traced"); more < bytes+1<<20 || more > whole/4 {
				t.Errorf("received %d bytes with a trace, %d without, want more with a trace", more, bytes)
			}
		})
	}
}
