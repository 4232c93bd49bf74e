//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/guess"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/format/tree"
	"lighter/test/testkit/workdir"
)

// TestGuessOfAnImage compares the guess of what a start reads with the pages that it does read.
// These are the pages in the page cache after the start. The required recall and precision leave
// room for other versions of the image's packages. The program must also run if all files on the
// device that were not guessed contain zeros.
func TestGuessOfAnImage(t *testing.T) {
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := layersOf(filepath.Join(work, "images", "python"))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := unpackQuickly(t, layers)
	if err != nil {
		t.Fatal(err)
	}
	dir := scratch(t)
	root := filepath.Join(dir, "root")
	if text, err := exec.Command("cp", "-a", merged, root).CombinedOutput(); err != nil {
		t.Fatalf("copy the image's files: %v: %s", err, text)
	}
	image := openImage(t, layers)
	for _, c := range []struct {
		argv              []string
		recall, precision float64
	}{
		{[]string{"bash", "-c", "echo hello"}, 0.95, 0.5},
		{[]string{"python3", "-c", "print('hello')"}, 0.95, 0.4},
	} {
		guessed := image.guess(t, guess.Config{Cmd: c.argv})
		for try := 1; ; try++ {
			evict(t, root)
			if got := runIn(t, root, c.argv); got != "hello\n" {
				t.Errorf("%q prints %q, want hello", c.argv, got)
			}
			recall, precision := compareReads(t, root, guessed)
			t.Logf("%q: recall %.3f, precision %.3f", c.argv, recall, precision)
			if recall >= c.recall && precision >= c.precision {
				break
			}
			if try == 3 { // other tests may drop the page cache during earlier tries
				t.Errorf("%q: got a recall of %.3f and a precision of %.3f, want %.2f and %.2f at least", c.argv,
					recall, precision, c.recall, c.precision)
				break
			}
		}
		guessedRoot := filepath.Join(dir, c.argv[0])
		linkGuessed(t, root, guessedRoot, guessed)
		if got := runIn(t, guessedRoot, c.argv); got != "hello\n" {
			t.Errorf("with zeros in files that were not guessed, %q prints %q, want hello", c.argv, got)
		}
	}
}

// guessedImage is an image as package guess reads it.
type guessedImage struct {
	metadata *erofs.Image
	extents  *index.Map
	store    *os.File           // all chunks, one after the other
	offsets  map[chunk.ID]int64 // of the chunks in store
}

// openImage makes the index of an image, and stores the image's chunks in a file.
func openImage(t *testing.T, layers []layer) *guessedImage {
	t.Helper()
	store, err := os.Create(filepath.Join(scratch(t), "chunks"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	offsets, end := map[chunk.ID]int64{}, int64(0)
	var splitter chunk.Splitter
	made, err := applyLayers(layers, func(e *tree.Entry, r io.Reader) error {
		if e.Size <= tree.InlineLimit {
			return digestContent(e, r)
		}
		return splitter.Split(r, e.Size, func(data []byte, zeros int64) error {
			x := tree.Extent{Length: zeros}
			if data != nil {
				x = tree.Extent{ID: chunk.Sum(data), Length: int64(len(data))}
				offsets[x.ID] = end
				n, err := store.Write(data)
				if end += int64(n); err != nil {
					return err
				}
			}
			e.Content.Extents = append(e.Content.Extents, x)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	var metadata, whole, extents bytes.Buffer
	m, err := index.Make(made, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Write(&whole, bytes.NewReader(metadata.Bytes())); err != nil {
		t.Fatal(err)
	}
	if _, err := index.Receive(&whole, m.ID(), &extents, io.Discard); err != nil {
		t.Fatal(err)
	}
	extentMap, err := index.OpenMap(bytes.NewReader(extents.Bytes()), m.ID(), index.NewPages(64))
	if err != nil {
		t.Fatal(err)
	}
	image, err := erofs.Open(bytes.NewReader(metadata.Bytes()), int64(metadata.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return &guessedImage{image, extentMap, store, offsets}
}

// guess returns the first recording that package guess makes for a start with config.
func (g *guessedImage) guess(t *testing.T, config guess.Config) trace.Recording {
	t.Helper()
	image := guess.Image{Metadata: g.metadata, Extents: g.extents, Config: config}
	image.Chunk = func(_ context.Context, _ int64, ref chunk.Ref) ([]byte, error) {
		plain := make([]byte, ref.Length)
		_, err := g.store.ReadAt(plain, g.offsets[ref.ID])
		return plain, err
	}
	all, err := image.Recordings(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatalf("got %d guesses (%v), want one at least", len(all), err)
	}
	return all[0]
}

// runIn runs a program with root as its root directory, and returns its output.
func runIn(t *testing.T, root string, argv []string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/usr/bin/"+argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("run %q: %v, stdout %q, stderr %q", argv, err, out, &stderr)
	}
	return string(out)
}

// eachFile calls fn for each regular file below root whose content is on the device.
func eachFile(t *testing.T, root string, fn func(file *os.File, size int64)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil || info.Size() <= tree.InlineLimit {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		fn(file, info.Size())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// evict drops the pages of all files below root from the page cache.
func evict(t *testing.T, root string) {
	t.Helper()
	unix.Sync()
	eachFile(t, root, func(file *os.File, size int64) {
		if err := unix.Fadvise(int(file.Fd()), 0, size, unix.FADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
	})
}

// compareReads returns the share of the pages in the page cache that were guessed (recall), and the
// share of the guessed pages that are in the page cache (precision).
func compareReads(t *testing.T, root string, guessed trace.Recording) (recall, precision float64) {
	t.Helper()
	pages := map[string]map[int64]bool{}
	guessedPages := 0
	for _, e := range guessed.Entries {
		if pages[e.Path] == nil {
			pages[e.Path] = map[int64]bool{}
		}
		for p := e.Offset / 4096; p*4096 < e.Offset+e.Length; p++ {
			if !pages[e.Path][p] {
				pages[e.Path][p] = true
				guessedPages++
			}
		}
	}
	read, hit := 0, 0
	eachFile(t, root, func(file *os.File, size int64) {
		guessed := pages[strings.TrimPrefix(file.Name(), root)]
		for p, inCache := range resident(t, file, size) {
			if inCache {
				read++
			}
			if inCache && guessed[int64(p)] {
				hit++
			}
		}
	})
	if read == 0 || guessedPages == 0 {
		t.Logf("%d pages read, %d guessed", read, guessedPages)
		return 0, 0
	}
	return float64(hit) / float64(read), float64(hit) / float64(guessedPages)
}

// resident reports for each page of a file whether it is in the page cache.
func resident(t *testing.T, file *os.File, size int64) []bool {
	t.Helper()
	m, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	states := make([]byte, (size+4095)/4096)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(size),
		uintptr(unsafe.Pointer(&states[0]))); errno != 0 {
		t.Fatal(errno)
	}
	out := make([]bool, len(states))
	for i, s := range states {
		out[i] = s&1 != 0
	}
	return out
}

// linkGuessed makes a root directory at to, with the directories, symlinks and files below root.
// Inline files and guessed files have their content. All other files contain zeros.
func linkGuessed(t *testing.T, root, to string, guessed trace.Recording) {
	t.Helper()
	guessedPaths := map[string]bool{}
	for _, e := range guessed.Entries {
		guessedPaths[e.Path] = true
	}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		switch {
		case entry.IsDir():
			return os.MkdirAll(to+name, 0o755)
		case entry.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, to+name)
		case !entry.Type().IsRegular():
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Size() <= tree.InlineLimit || guessedPaths[name] {
			return os.Link(path, to+name)
		}
		if err := os.WriteFile(to+name, nil, info.Mode()); err != nil {
			return err
		}
		return errors.Join(os.Truncate(to+name, info.Size()), os.Chtimes(to+name, info.ModTime(), info.ModTime()))
	})
	if err != nil {
		t.Fatal(err)
	}
}
