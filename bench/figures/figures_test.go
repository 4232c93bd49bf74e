package figures

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/bench"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
)

func TestModesAlternate(t *testing.T) {
	b := &run{Options: bench.Options{Rounds: 3}}
	var order []string
	if err := b.bothModes(func(round int, mode string) error {
		order = append(order, fmt.Sprint(round, mode))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := "0overlayfs 0lighter 1lighter 1overlayfs 2overlayfs 2lighter"
	if got := strings.Join(order, " "); got != want {
		t.Errorf("got order %s, want %s", got, want)
	}
}

func TestComparedFactors(t *testing.T) {
	for factor, want := range map[float64]string{2.04: "2.0× faster", 12.4: "12× faster", 0.5: "2.0× slower"} {
		if got := compared(factor, "faster", "slower"); got != want {
			t.Errorf("factor %v: got %s, want %s", factor, got, want)
		}
	}
}

func TestEveryTargetHasAWorkload(t *testing.T) {
	config, err := bench.ReadConfig("")
	if err != nil {
		t.Fatal(err)
	}
	workloads := judged(config)
	if len(workloads) != len(targets) {
		t.Errorf("%d workloads of the configuration have a target, want %d", len(workloads), len(targets))
	}
	for _, name := range demoWorkloads {
		if !slices.ContainsFunc(workloads, func(w bench.Workload) bool { return w.String() == name }) {
			t.Errorf("the demo's workload %s is not in the configuration", name)
		}
	}
}

func TestBarLengths(t *testing.T) {
	for _, c := range []struct {
		pull, run float64
		want      string
	}{
		{10, 0, strings.Repeat("█", 30)},
		{5, 5, strings.Repeat("█", 15) + strings.Repeat("░", 15)},
		{0, 1, "░░░"},
		{0.01, 0.01, "░"}, // one character at least
	} {
		if got := bar(c.pull, c.run, 10); got != c.want {
			t.Errorf("bar of %v and %v is %q, want %q", c.pull, c.run, got, c.want)
		}
	}
}

func TestLongCommandsAreTruncated(t *testing.T) {
	if got := shown([]string{"bash", "-c", "true"}); got != "bash -c true" {
		t.Errorf("a short command is shown as %q, want it whole", got)
	}
	long := shown([]string{"python3", "-c", strings.Repeat("import é; ", 20)})
	if n := utf8.RuneCountInString(long); n != 42 || !strings.HasPrefix(long, "python3 -c 'import é;") {
		t.Errorf("a long command is shown as %q, %d characters, want its first 42", long, n)
	}
}

// emptyLayout makes an image without layers.
func emptyLayout(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "empty")
	if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest}
	if err := layout.Write(dir, manifest, ocispec.Image{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// extended makes an image with one more layer, which contains the files.
func extended(t *testing.T, from string, files map[string]string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "extended")
	err := layout.Extend(from, to, func(l *layout.Layer) error {
		for name, content := range files {
			if err := l.File(name, []byte(content)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func TestDedupCountsDuplicatesOnce(t *testing.T) {
	first := strings.Repeat("first ", 100_000)
	second := first + strings.Repeat("second", 100_000)
	one := extended(t, emptyLayout(t), map[string]string{"a": first, "b": first})
	two := extended(t, one, map[string]string{"c": second})
	s, err := newSums()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{one, two} {
		if err := s.addImage(dir); err != nil {
			t.Fatal(err)
		}
	}
	a, c := int64(len(first)), int64(len(second))
	if s.all != 4*a+c || s.layers != 2*a+c || s.files != a+c {
		t.Errorf("bytes of all files, of distinct layers and of distinct files: got %d, %d, %d, want %d, %d, %d",
			s.all, s.layers, s.files, 4*a+c, 2*a+c, a+c)
	}
	if s.chunks <= 0 || s.chunks >= s.files-a/2 {
		t.Errorf("bytes of distinct chunks: got %d, want 1 to %d, because the files share half of their bytes",
			s.chunks, s.files-a/2-1)
	}
}

func TestWalkAndReadAll(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"a/b/c", "a/d", "e"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, 300_000), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	if names, err := walk(root, nil); err != nil || names != 6 {
		t.Errorf("got %d names, want 6: %v", names, err)
	}
	var r reader
	if n, err := r.readAll(root); err != nil || n != 900_000 {
		t.Errorf("got %d bytes, want 900000: %v", n, err)
	}
}

func TestSharesOfAProfile(t *testing.T) {
	const top = `Type: cpu
      flat  flat%   sum%        cum   cum%
     1.10s 27.50% 27.50%      1.10s 27.50%  crypto/internal/fips140/sha256.blockSHANI
     0.04s  1.00% 28.50%      0.05s  1.25%  hash/crc32.castagnoliSSE42Triple
     0.02s   0.5% 29.00%      0.05s  1.25%  hash/crc32.Update
     2.84s   71%   100%      2.84s   71%  internal/runtime/syscall/linux.Syscall6
`
	got, err := sharesOf([]byte(top))
	if err != nil || got["SHA-256"] != 27.5 || got["CRC32C"] != 1.5 {
		t.Errorf("shares: got %v (%v), want SHA-256 27.5 and CRC32C 1.5", got, err)
	}
	if _, err := sharesOf([]byte("Type: cpu\n")); err == nil {
		t.Error("an invalid profile was accepted")
	}
}

func TestProcessorTimeIncludesChildren(t *testing.T) {
	const child = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done"
	took, output, err := processorTime(t.Context(), "sh", "-c", "sh -c '"+child+"' && true") // and no exec of the child
	if err != nil || took < 0.01 || string(output) != "done\n" {
		t.Errorf("got %v s and the output %q (%v), want 0.01 s at least, and done", took, output, err)
	}
	if _, _, err := processorTime(t.Context(), "sh", "-c", "echo no image >&2; exit 1"); err == nil ||
		!strings.Contains(err.Error(), "no image") {
		t.Errorf("a program that failed: %v, want an error with its message", err)
	}
}

func TestPercentagesHaveTwoDecimals(t *testing.T) {
	if got := (verdict{Value: 0.794, Unit: "%"}).value(); got != "0.79 %" {
		t.Errorf("got %s, want 0.79 %%", got)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []bench.Options{{Rounds: 1, Only: []string{"nothing"}}, {Only: []string{"walk"}}} {
		if o.Check(Names()) == nil {
			t.Errorf("invalid options were accepted: %+v", o)
		}
	}
	o := bench.Options{Rounds: 7, Only: []string{"walk", "reads"}}
	if err := o.Check(Names()); err != nil || !o.Selects("walk") || o.Selects("memory") ||
		!(bench.Options{}).Selects("walk") {
		t.Errorf("check: %v; selected of walk and memory: got %t and %t, want only walk; without names, all figures",
			err, o.Selects("walk"), o.Selects("memory"))
	}
	if len(modes) != 2 || modes[0] != site.Overlayfs {
		t.Errorf("modes: got %v, want two, overlayfs first", modes)
	}
}
