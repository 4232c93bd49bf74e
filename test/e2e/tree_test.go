//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/tree"
	"lighter/test/testkit/fswalk"
	"lighter/test/testkit/images"
	"lighter/test/testkit/tarball"
)

// The oracle of package tree is containerd: its overlayfs snapshotter and its applier unpack a
// chain of layers on disk, and the kernel mounts it. Lighter's tree must have exactly the same
// entries. Lighter must refuse the layers that containerd refuses, and no others. Most tests mount
// Lighter's tree with EROFS, as a node does (listThroughKernel). TestRandomTrees has many trees,
// and lists them in memory (listTree).

// TestTreeMatchesContainerd compares the trees of odd layers.
func TestTreeMatchesContainerd(t *testing.T) {
	for _, c := range tarball.Odd() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if refused := compareTrees(t, memoryLayers(c.Layers), unpackImage,
				listThroughKernel); refused != c.Refused {
				t.Errorf("containerd and Lighter refuse the layers: got %t, want %t", refused, c.Refused)
			}
		})
	}
}

// TestTreeOfImages compares the trees of real images.
func TestTreeOfImages(t *testing.T) {
	for _, name := range []string{"base", "python"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			layers, err := layersOf(images.Dir(name))
			if err != nil {
				t.Fatal(err)
			}
			if compareTrees(t, layers, unpackImage, listThroughKernel) {
				t.Error("containerd and Lighter refuse the layers, want both to accept them")
			}
		})
	}
}

// compareTrees unpacks layers with containerd, lists Lighter's tree of them, and fails the test for
// each difference. It returns whether both refuse the layers.
func compareTrees(t *testing.T, layers []layer, unpack func(testing.TB, []layer) (string, error),
	list func(testing.TB, []layer) (fswalk.Listing, error)) (bothRefuse bool) {
	t.Helper()
	start := time.Now().Unix()
	ours, ourErr := list(t, layers)
	dir, theirErr := unpack(t, layers)
	switch {
	case ourErr != nil && theirErr != nil:
		t.Logf("both refuse the layers; Lighter: %v; containerd: %v", ourErr, theirErr)
		return true
	case ourErr != nil:
		t.Fatalf("Lighter refuses layers that containerd accepts: %v", ourErr)
	case theirErr != nil:
		t.Fatalf("Lighter accepts layers that containerd refuses: %v", theirErr)
	}
	theirs, err := fswalk.Walk(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range fswalk.Diff(theirs, ours, fswalk.Options{ComparesTime: setTimes(start)}) {
		t.Errorf("containerd and Lighter differ: %s", d)
	}
	return false
}

// setTimes returns a function that selects the times to compare: all but those of the root and of
// directories that got their time when they were unpacked, at start or later. start is in seconds.
func setTimes(start int64) func(string, fswalk.Entry, fswalk.Entry) bool {
	return func(p string, theirs, _ fswalk.Entry) bool {
		return p != "." && !(theirs.IsDir() && theirs.Sec >= start-1)
	}
}

// listTree makes Lighter's tree of layers in memory, and lists it like fswalk.Walk.
func listTree(_ testing.TB, layers []layer) (fswalk.Listing, error) {
	made, err := applyLayers(layers, digestContent)
	if err != nil {
		return nil, err
	}
	l := lister{found: fswalk.Listing{}, first: map[*tree.Node]string{}}
	l.list(".", made.Root)
	return l.found, nil
}

// applyLayers makes Lighter's tree of layers. It writes and reads their layer records, as a hub
// does. content stores the content of each file in the file's entry.
func applyLayers(layers []layer, content func(*tree.Entry, io.Reader) error) (*tree.Tree, error) {
	sources := make([]tree.LayerSource, len(layers))
	for i, layer := range layers {
		var record bytes.Buffer
		w := tree.NewRecordWriter(&record)
		scan := func(r io.Reader) error { return tree.Scan(r, tree.Limits{}, content, w.Add) }
		if err := layer.read(scan); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		sources[i] = tree.NewRecordReader(&record)
	}
	return tree.Apply(context.Background(), sources, tree.Limits{})
}

// digestContent stores a file inline if it is small, otherwise as a single chunk of any size.
func digestContent(e *tree.Entry, r io.Reader) error {
	if e.Size <= tree.InlineLimit {
		e.Content.Inline = make([]byte, e.Size)
		_, err := io.ReadFull(r, e.Content.Inline)
		return err
	}
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(r, e.Size))
	if err == nil && n != e.Size {
		err = io.ErrUnexpectedEOF
	}
	e.Content.Extents = []tree.Extent{{ID: chunk.ID(h.Sum(nil)), Length: e.Size}}
	return err
}

type lister struct {
	found fswalk.Listing
	first map[*tree.Node]string // the first path of each file with several links
}

func (l *lister) list(p string, n *tree.Node) {
	e := fswalk.Entry{
		Mode: n.Mode, UID: n.UID, GID: n.GID, Rdev: n.Rdev, Size: n.Size,
		Sec: n.Mtime.Sec, Nsec: int64(n.Mtime.Nsec), Link: n.Link,
	}
	if !n.IsDir() {
		e.Nlink = uint64(n.Nlink)
	}
	if n.IsRegular() {
		sum := sha256.Sum256(n.Content.Inline)
		e.SHA256 = hex.EncodeToString(sum[:])
		if len(n.Content.Extents) == 1 {
			e.SHA256 = n.Content.Extents[0].ID.String()
		}
	}
	if e.Nlink > 1 {
		if l.first[n] == "" {
			l.first[n] = p
		}
		e.Group = l.first[n]
	}
	for _, x := range n.Xattrs {
		if e.Xattrs == nil {
			e.Xattrs = map[string]string{}
		}
		e.Xattrs[x.Name] = string(x.Value)
		if x.Name == "security.capability" && len(x.Value) == 0 {
			e.Xattrs[x.Name] = "!EINVAL" // as in fswalk: the kernel fails to return an empty one
		}
	}
	l.found[p] = e
	for _, child := range n.Children() {
		l.list(path.Join(p, child.Name), child.Node)
	}
}
