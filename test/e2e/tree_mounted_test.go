//go:build e2e

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/tree"
	"lighter/test/testkit/fswalk"
	"lighter/test/testkit/tarball"
)

// listThroughKernel lists the files of layers as the kernel shows them to a container. It splits
// the files into chunks, makes the index of the tree, and mounts the metadata image with a file as
// the device. fsck.erofs must accept the image, and go-erofs must show the same files as the
// kernel.
func listThroughKernel(t testing.TB, layers []layer) (fswalk.Listing, error) {
	t.Helper()
	dir := scratch(t)
	chunks, err := newChunkFile(filepath.Join(dir, "chunks"))
	if err != nil {
		t.Fatal(err)
	}
	defer chunks.file.Close()
	made, err := applyLayers(layers, chunks.content)
	if err != nil {
		return nil, err
	}
	meta, device := filepath.Join(dir, "metadata"), filepath.Join(dir, "device")
	if err := chunks.writeImage(made, meta, device); err != nil {
		return nil, err
	}
	listing, err := fswalk.Walk(erofsMount(t, meta, device))
	if err != nil {
		t.Fatal(err)
	}
	erofsFsck(t, meta, device)
	byGoErofs, err := listGoErofs(meta, device)
	if err != nil {
		t.Fatalf("list the image with go-erofs: %v", err)
	}
	for _, d := range fswalk.Diff(listing, byGoErofs, fswalk.Options{}) {
		t.Errorf("the kernel and go-erofs differ: %s", d)
	}
	return listing, nil
}

// A chunkFile stores chunks in a file, like a hub without packs.
type chunkFile struct {
	file     *os.File
	places   map[chunk.ID]int64 // the offset of each chunk in file
	end      int64              // the offset of the next chunk
	splitter chunk.Splitter
}

func newChunkFile(path string) (*chunkFile, error) {
	file, err := os.Create(path)
	return &chunkFile{file: file, places: map[chunk.ID]int64{}}, err
}

// content stores a file of a layer: in its entry if the file is small, otherwise as chunks.
func (c *chunkFile) content(e *tree.Entry, r io.Reader) error {
	if e.Size <= tree.InlineLimit {
		e.Content.Inline = make([]byte, e.Size)
		_, err := io.ReadFull(r, e.Content.Inline)
		return err
	}
	return c.splitter.Split(r, e.Size, func(data []byte, zeros int64) error {
		x := tree.Extent{Length: zeros}
		if data != nil {
			x = tree.Extent{ID: chunk.Sum(data), Length: int64(len(data))}
		}
		e.Content.Extents = append(e.Content.Extents, x)
		if _, known := c.places[x.ID]; known || data == nil {
			return nil
		}
		c.places[x.ID] = c.end
		_, err := c.file.WriteAt(data, c.end)
		c.end += x.Length
		return err
	})
}

// writeImage makes the index of a tree. It writes the metadata image to the file meta, and the
// bytes of the device to the file device.
func (c *chunkFile) writeImage(t *tree.Tree, meta, device string) error {
	var image, whole, extents bytes.Buffer
	made, err := index.Make(t, &image)
	if err != nil {
		return err
	}
	if err := made.Write(&whole, &image); err != nil {
		return err
	}
	image.Reset()
	if _, err := index.Receive(&whole, made.ID(), &extents, &image); err != nil {
		return err
	}
	if err := os.WriteFile(meta, image.Bytes(), 0o600); err != nil {
		return err
	}
	m, err := index.OpenMap(bytes.NewReader(extents.Bytes()), made.ID(), index.NewPages(64))
	if err != nil {
		return err
	}
	file, err := os.Create(device)
	if err != nil {
		return err
	}
	return errors.Join(c.fill(file, m), file.Close())
}

// fill writes each extent's chunk at its offset on the device.
func (c *chunkFile) fill(device *os.File, m *index.Map) error {
	for i := range m.Extents {
		e, err := m.Extent(i)
		if err != nil {
			return err
		}
		place, known := c.places[e.ID]
		if !known {
			return fmt.Errorf("extent %d refers to the unknown chunk %s", i, e.ID.Short())
		}
		data := make([]byte, e.Length)
		if _, err := c.file.ReadAt(data, place); err != nil {
			return err
		}
		if _, err := device.WriteAt(data, e.Offset); err != nil {
			return err
		}
	}
	return device.Truncate(m.DeviceSize)
}

// TestContents compares files at the sizes at which their storage changes, files with holes, equal
// files, hard links and replaced files. To find equal files, package index hashes the list of a
// file's chunks. Some files consist of the very list of another file, and must not be mistaken for
// it.
func TestContents(t *testing.T) {
	text := func(n int) string { return strings.Repeat("0123456789abcde\n", n/16+1)[:n] }
	noise := func(seed byte, n int) string {
		b := make([]byte, n)
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
		return string(b)
	}
	zeros := func(n int) string { return string(make([]byte, n)) }
	large := noise(1, 1<<20)
	var sizes []tarball.Item
	for _, n := range []int{0, 1, 511, 512, 513, 4095, 4096, 4097, 64<<10 - 1, 64 << 10, 64<<10 + 1, 300_000} {
		sizes = append(sizes, tarball.File(fmt.Sprintf("sizes/%d", n), text(n)))
	}
	chains := map[string][]layer{
		"sizes": memoryLayers([][]byte{tarball.Of(sizes...)}),
		"holes": memoryLayers([][]byte{tarball.Of(
			tarball.File("start", zeros(100_000)+"x"), tarball.File("end", noise(2, 5000)+zeros(100_001)),
			tarball.File("middle", noise(3, 70_000)+zeros(200_000)+noise(4, 70_000)),
			tarball.File("only", zeros(1<<20+1)),
			tarball.File("short", zeros(65_535)), tarball.File("many", strings.Repeat(zeros(80_000)+"x", 20)),
			tarball.File("z", "z"))}),
		"alike": memoryLayers([][]byte{tarball.Of(
			tarball.File("a", large), tarball.File("b/a", large, tarball.Mode(0o755)), tarball.Link("b/b", "a"),
			tarball.File("c", large[:1<<19]), tarball.File("d", large[1<<19:]), tarball.File("e", large+"x"))}),
		"replaced": memoryLayers([][]byte{
			tarball.Of(tarball.File("a", large), tarball.Link("b", "a"), tarball.File("c", text(9000)),
				tarball.File("d/e", text(8000))),
			tarball.Of(tarball.File("a", text(9000)), tarball.Whiteout("c"), tarball.Opaque("d"),
				tarball.File("d/f", large))}),
	}
	for name, order := range map[string][2]string{"a list in a file": {"a", "b"},
		"a list in a file before it": {"b", "a"}} {
		list := spellOut(t, large)
		chains[name] = memoryLayers([][]byte{tarball.Of(tarball.File(order[0], large), tarball.File(order[1], list))})
	}
	for name, layers := range chains {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if compareTrees(t, layers, unpackImage, listThroughKernel) {
				t.Error("containerd and Lighter refuse the layers, want both to accept them")
			}
		})
	}
}

// spellOut returns the list of a file's chunks that package index hashes to find equal files. It
// has 40 bytes for each chunk: the ID and the length.
func spellOut(t *testing.T, content string) string {
	var list []byte
	var s chunk.Splitter
	err := s.Split(strings.NewReader(content), int64(len(content)), func(data []byte, _ int64) error {
		id := chunk.Sum(data)
		list = binary.LittleEndian.AppendUint64(append(list, id[:]...), uint64(len(data)))
		return nil
	})
	if err != nil || len(list) <= tree.InlineLimit {
		t.Fatalf("the list has %d bytes (%v), want more than %d", len(list), err, tree.InlineLimit)
	}
	return string(list)
}
