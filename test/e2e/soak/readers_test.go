//go:build e2e

package soak

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	tars "lighter/test/testkit/tarball"
)

// patience is how long the tests wait for anything that must happen, such as a reader's next round.
const patience = 3 * time.Minute

// wholeReader is a container that reads the files of its image (see hashes) round after round, and
// compares their hashes. It stops after a round that finds a wrong file.
type wholeReader struct {
	container *site.Container
	rounds    string // path of a file that grows by a byte after each round
	wrong     string // path of a file that lists wrong files
}

// readWhole starts a wholeReader of an image whose layout is in dir.
func readWhole(t *testing.T, s *site.Site, name, dir string) *wholeReader {
	t.Helper()
	sums := hashes(t, dir)
	const loop = `cd / && until [ -e /sums ]; do sleep 0.1; done
while sha256sum --check --quiet --strict /sums >>/wrong 2>&1; do printf . >>/rounds; done
echo ended >>/wrong; sleep infinity`
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference(name), "sh", "-c", loop)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(c.Root, "sums")
	if err := errors.Join(os.WriteFile(path+".new", sums, 0o644), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	return &wholeReader{c, filepath.Join(c.Root, "rounds"), filepath.Join(c.Root, "wrong")}
}

// hashes returns the hashes of an image's regular files, in the format of sha256sum. It computes
// them from the layers of the OCI layout in dir. It leaves out hard links, the files in changed,
// and names with a backslash or a line break.
func hashes(t *testing.T, dir string) []byte {
	t.Helper()
	image, err := images.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	stream := mutate.Extract(image)
	defer stream.Close()
	var sums bytes.Buffer
	entries := 0
	for layers := tar.NewReader(stream); ; entries++ {
		h, err := layers.Next()
		if err == io.EOF {
			break
		}
		if err == nil && h.Typeflag == tar.TypeReg && !changed[h.Name] && !strings.ContainsAny(h.Name, "\\\n") {
			sum := sha256.New()
			_, err = io.Copy(sum, layers)
			fmt.Fprintf(&sums, "%x  ./%s\n", sum.Sum(nil), h.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if entries < 1000 {
		t.Fatalf("the layers in %s have only %d entries, want at least 1000 for a long round", dir, entries)
	}
	return sums.Bytes()
}

// changed lists files of an image over which the container runtime mounts other files.
var changed = map[string]bool{"etc/hostname": true, "etc/hosts": true, "etc/resolv.conf": true}

// check fails the test if the container has read a wrong byte, or a read has failed. It returns the
// number of finished rounds.
func (r *wholeReader) check(t *testing.T) (rounds int64) {
	t.Helper()
	if wrong, err := os.ReadFile(r.wrong); err != nil && !errors.Is(err, fs.ErrNotExist) || len(wrong) > 0 {
		t.Fatalf("the container has found wrong files, or the list of them cannot be read (%v):\n%s", err, wrong)
	}
	info, err := os.Stat(r.rounds)
	if err != nil {
		return 0
	}
	return info.Size()
}

// anotherRound waits until the container has read the whole image once more. The current round may
// have begun earlier, so two rounds must end.
func (r *wholeReader) anotherRound(t *testing.T) {
	t.Helper()
	for before, end := r.check(t), time.Now().Add(patience); r.check(t) < before+2; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the container has finished %d rounds in %v, want 2", r.check(t)-before, patience)
		}
	}
}

// dataSize is the size of the file that fio reads, in bytes.
const dataSize = 48 << 20

// addData adds an image to the hub, and returns its name. The image has the files of the image
// base, and the file /data: blocks with their own checksums, as fio writes them.
func addData(t *testing.T, s *site.Site) (name string) {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	if err := startFio(t.Context(), 1, "--rw=write", "--filename="+data, "--do_verify=0")(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	addFile(t, s, "base", "data", "data", string(text))
	return "data"
}

// addFile adds an image to the hub that has the layers of the image from, and one more file.
func addFile(t *testing.T, s *site.Site, from, name, file, content string) {
	t.Helper()
	dir := t.TempDir()
	blob := tars.Of(tars.File(file, content))
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(blob)),
			nil
	},
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		t.Fatal(err)
	}
	base, err := images.Open(images.Dir(from))
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(base, layer)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Write(filepath.Join(dir, "image"), "latest", image); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Push(t.Context(), filepath.Join(dir, "image"), name),
		s.Hub.Add(t.Context(), name)); err != nil {
		t.Fatal(err)
	}
}

// startFio starts fio. fio writes a checksum into each block, and verifies it when it reads the
// block. wait waits until fio ends, and stops it when ctx ends.
func startFio(ctx context.Context, jobs int, args ...string) (wait func() error) {
	cmd := exec.Command("fio", append([]string{"--name=soak", "--bs=16k", "--thread", "--ioengine=psync",
		"--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0",
		fmt.Sprintf("--size=%d", dataSize), fmt.Sprintf("--numjobs=%d", jobs)}, args...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return func() error { return err }
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return func() error {
		var err error
		select {
		case err = <-ended:
		case <-ctx.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM) // the process may just have ended
			select {
			case err = <-ended:
			case <-time.After(patience):
				_ = cmd.Process.Kill()
				return errors.New("fio hangs in a read")
			}
		}
		// If the signal has stopped fio, its exit code is not 0 either. So the errors in its output
		// count.
		if good, all := strings.Count(out.String(), "err= 0"), strings.Count(out.String(), "err="); good != jobs ||
			all != jobs {
			return fmt.Errorf("fio: %v\n%s", err, out.String())
		}
		return nil
	}
}

// randomReader is fio on the host. It reads the file /data in a container's root at random offsets,
// and verifies each block.
type randomReader struct {
	cancel context.CancelFunc
	ended  chan error
}

// randomReaders is the number of fio's threads. Each has one read in flight.
const randomReaders = 4

// readRandomly starts a container of an image of addData, and a randomReader of it.
func readRandomly(t *testing.T, s *site.Site, name string) *randomReader {
	t.Helper()
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference(name), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &randomReader{cancel, make(chan error, 1)}
	wait := startFio(ctx, randomReaders, "--rw=randread", "--readonly", "--time_based", "--runtime=1h",
		"--filename="+filepath.Join(c.Root, "data"))
	go func() { r.ended <- wait() }()
	return r
}

// stop ends fio. It fails the test if fio has read a wrong byte, a read has failed, or fio hangs.
func (r *randomReader) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

// check fails the test if fio has ended.
func (r *randomReader) check(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.ended:
		r.ended <- err
		t.Fatalf("fio has ended (%v), want it to read on", err)
	default:
	}
}
