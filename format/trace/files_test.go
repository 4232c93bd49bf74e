package trace

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/index"
	"lighter/format/tree"
)

// regular is a file of chunks of these lengths.
func regular(name string, lengths ...int64) tree.Dirent {
	n := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1}
	for i, length := range lengths {
		n.Content.Extents = append(n.Content.Extents, tree.Extent{Length: length, ID: piece(name, i)})
		n.Size += length
	}
	return tree.Dirent{Name: name, Node: n}
}

func piece(name string, i int) chunk.ID { return chunk.Sum(fmt.Append(nil, name, i)) }

func dir(children ...tree.Dirent) *tree.Node { return tree.NewDir(tree.Node{Mode: 0o755}, children) }

// open makes the index of a tree. It returns also the device offset of each file, by path.
func open(t *testing.T, root *tree.Node) (*erofs.Image, *index.Map, map[string]int64) {
	t.Helper()
	var metadata, extents bytes.Buffer
	made, err := index.Make(&tree.Tree{Root: root}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	if err := made.Write(&whole, bytes.NewReader(metadata.Bytes())); err != nil {
		t.Fatal(err)
	}
	if _, err := index.Receive(&whole, made.ID(), &extents, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	m, err := index.OpenMap(bytes.NewReader(extents.Bytes()), made.ID(), index.NewPages(4))
	if err != nil {
		t.Fatal(err)
	}
	image, err := erofs.Open(bytes.NewReader(metadata.Bytes()), int64(metadata.Len()))
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]int64{}
	if _, err := image.Walk(t.Context(), func(path string, in erofs.Inode) error {
		if in.Device {
			places[path] = int64(in.Address)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return image, m, places
}

func TestFilesOfATrace(t *testing.T) {
	shared := regular("shared", 20000)
	shared.Node.Nlink = 2
	image, extents, places := open(t, dir(
		tree.Dirent{Name: "bin", Node: dir(regular("large", 100_000, 30_000, 7), regular("other", 6000))},
		tree.Dirent{Name: "lib", Node: dir(shared, tree.Dirent{Name: "link", Node: shared.Node})}))
	const ms = time.Millisecond
	traced := Trace{Reads: []Read{
		{0, places["/lib/shared"] + 4096, 4096},
		{1 * ms, places["/bin/large"] + 98304, 12288}, // two chunks
		{2 * ms, places["/bin/large"] + 131072 - 4096, 8192},
		{3 * ms, places["/bin/other"] - 4096, 12288}, // over its borders
		{3 * ms, 1 << 40, 4096},                      // there is nothing
	}}
	r, err := traced.Recording(t.Context(), image, extents, MaxText)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range r.Entries {
		if len(e.Chunks) == 0 {
			t.Errorf("%v: got no chunks, want some", e)
		}
		got = append(got, fmt.Sprint(e.At.Milliseconds(), " ", e.Path, " ", e.Offset, " ", e.Length, " ",
			len(e.Chunks)))
	}
	all := strings.Join(got, "\n")
	for _, want := range []string{"0 /lib/link 4096 4096 1", "1 /bin/large 98304 12288 2",
		"2 /bin/large 126976 3031 2", "3 /bin/other 0 6000 1"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not among\n%s", want, all)
		}
	}
	if r.Starts != 1 || r.Entries[1].Chunks[0] != piece("large", 0) || r.Entries[1].Chunks[1] != piece("large", 1) {
		t.Errorf("%d starts, chunks %v; want 1 and the first two chunks of /bin/large", r.Starts, r.Entries[1].Chunks)
	}
	if back, err := ParseText(EncodeText([]Recording{r})); err != nil || len(back) != 1 ||
		len(back[0].Entries) != len(r.Entries) {
		t.Errorf("encoded as text and parsed: got %v, error %v; want the same %d entries", back, err, len(r.Entries))
	}
	if short, err := traced.Recording(t.Context(), image, extents, r.Entries[0].Size()); err != nil ||
		len(short.Entries) != 1 {
		t.Errorf("limited to the size of the first entry: got %v, error %v; want one entry", short, err)
	}
}
