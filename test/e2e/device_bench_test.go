//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/node/fuse"
	"lighter/test/testkit/journal"
)

// BenchmarkDeviceRead measures random reads of 4 KiB from a device: on a connection whose requests
// the kernel can resend, and on one with a journal.
func BenchmarkDeviceRead(b *testing.B) {
	type mounter func(dir string, log *slog.Logger) (*fuse.Server, error)
	for name, mount := range map[string]mounter{"resend": fuse.Mount, "journal": journal.Mount} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			s, err := mount(dir, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			stop := startServing(b, s)
			defer stop()
			const size = 64 << 20
			_, path := addDevice(b, s, "a", size, inMemory(noise(1, size)))
			b.SetParallelism(2)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				// not os.Open, because this process serves the file (see openDevice)
				fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					b.Error(err)
					return
				}
				defer unix.Close(fd)
				buffer := make([]byte, 4096)
				for pb.Next() {
					if n, err := unix.Pread(fd, buffer, rand.Int64N(size/4096)*4096); n != 4096 || err != nil {
						b.Errorf("got %d bytes (%v), want 4096", n, err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkReadDuringFlood measures how long reads of a page take if the server has the page in
// memory. Meanwhile processes flood another image with read-ahead: none, one that floods it once,
// or one or four that flood it without end. Reads of the flooded image hang (stuck), or the server
// has its bytes in memory (cached).
func BenchmarkReadDuringFlood(b *testing.B) {
	for _, c := range []struct {
		name           string
		floods         int
		endless, stuck bool
	}{
		{"none", 0, false, false}, {"stuck/once", 1, false, true}, {"stuck/endless", 1, true, true},
		{"stuck/4 endless", 4, true, true},
		{"cached/endless", 1, true, false}, {"cached/4 endless", 4, true, false},
	} {
		b.Run(c.name, func(b *testing.B) { benchmarkDuringFlood(b, c.floods, c.endless, c.stuck) })
	}
}

func benchmarkDuringFlood(b *testing.B, floods int, endless, stuck bool) {
	s, err := fuse.Mount(b.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(startServing(b, s))
	flooded, measured := makeFloodImage(b), makeTestImage(b, map[string][]byte{"file": noise(2, 64<<20)})
	h := newHanging(flooded.data)
	_, floodedPath := addDevice(b, s, "flooded", len(flooded.data), h)
	_, measuredPath := addDevice(b, s, "measured", len(measured.data), inMemory(measured.data))
	floodedTree, measuredTree := mountImage(b, flooded, floodedPath), mountImage(b, measured, measuredPath)
	release := sync.OnceFunc(func() { close(h.released) })
	b.Cleanup(release) // before the trees are unmounted
	if !stuck {
		release()
	}
	for range floods {
		cmd, wait := startFlood(b, filepath.Join(floodedTree, "file"), endless)
		if !endless {
			wait()
			continue
		}
		b.Cleanup(func() {
			cmd.Process.Kill()
			release()
			wait() // returns an error, because the process was killed
		})
	}
	for b.Loop() {
		cmd := exec.Command("/proc/self/exe", filepath.Join(measuredTree, "file"), "1000")
		cmd.Env = append(os.Environ(), deviceHelper+"=pages")
		out, err := cmd.Output()
		var took []time.Duration
		if err == nil {
			err = json.Unmarshal(out, &took)
		}
		if err != nil {
			b.Fatal(err)
		}
		slices.Sort(took)
		for _, percent := range []int{50, 99, 100} {
			at := took[(len(took)-1)*percent/100]
			b.ReportMetric(float64(at.Microseconds()), fmt.Sprintf("p%d-µs", percent))
		}
	}
	st := s.Stats()
	b.ReportMetric(float64(st.Queued), "queued")
	b.ReportMetric(float64(st.Failed["overload"]), "evicted")
}

// helpPages reads random pages of a file that are not in the page cache. It prints the durations of
// the reads as JSON. pages is the number of reads.
func helpPages(path, pages string) error {
	n, err := strconv.Atoi(pages)
	if err != nil {
		return err
	}
	fd, err := openDevice(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM); err != nil { // disables read-ahead
		return err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	took, page := make([]time.Duration, n), make([]byte, 4096)
	for i := range took {
		at := rand.Int64N(stat.Size/4096) * 4096
		if err := unix.Fadvise(fd, at, 4096, unix.FADV_DONTNEED); err != nil {
			return err
		}
		begin := time.Now()
		if _, err := unix.Pread(fd, page, at); err != nil {
			return err
		}
		took[i] = time.Since(begin)
	}
	return json.NewEncoder(os.Stdout).Encode(took)
}
