package erofs

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"lighter/format/chunk"
	"lighter/format/tree"
)

// These functions build trees.

func when(sec int64, nsec uint32) tree.Time { return tree.Time{Sec: sec, Nsec: nsec} }

func dirOf(children ...tree.Dirent) *tree.Node {
	return tree.NewDir(tree.Node{Mode: 0o755, Mtime: when(1700000000, 0)}, children)
}

func name(name string, n *tree.Node) tree.Dirent { return tree.Dirent{Name: name, Node: n} }

func file(content string) *tree.Node {
	n := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1, Size: int64(len(content)),
		Mtime: when(1700000000, 123456789)}
	n.Content.Inline = []byte(content)
	return n
}

// onDevice is a file on the device, of one chunk.
func onDevice(size int64) *tree.Node {
	n := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1, Size: size, Mtime: when(1700000000, 1)}
	n.Content.Extents = []tree.Extent{{ID: chunk.Sum([]byte{1}), Length: size}}
	return n
}

func symlink(target string) *tree.Node {
	return &tree.Node{Mode: tree.ModeSymlink | 0o777, Nlink: 1, Size: int64(len(target)), Link: target}
}

func special(mode uint32, rdev uint64) *tree.Node {
	return &tree.Node{Mode: mode, Nlink: 1, Rdev: rdev}
}

func with(n *tree.Node, xattrs ...tree.Xattr) *tree.Node {
	slices.SortFunc(xattrs, func(a, b tree.Xattr) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	n.Xattrs = xattrs
	return n
}

func linked(n *tree.Node, nlink uint32) *tree.Node {
	n.Nlink = nlink
	return n
}

func x(name, value string) tree.Xattr { return tree.Xattr{Name: name, Value: []byte(value)} }

// device places files on the device, one after the other.
type device struct {
	places map[*tree.Node]uint64
	size   uint64
}

func layOut(t *tree.Tree) *device {
	d := &device{places: map[*tree.Node]uint64{}}
	var visit func(n *tree.Node)
	visit = func(n *tree.Node) {
		if _, known := d.places[n]; n.IsRegular() && len(n.Content.Extents) > 0 && !known {
			d.places[n] = d.size
			d.size += uint64(blocksOf(n.Size)) * BlockSize
		}
		for _, c := range n.Children() {
			visit(c.Node)
		}
	}
	visit(t.Root)
	return d
}

func (d *device) place(n *tree.Node) uint64 { return d.places[n] }

// image writes a tree and opens its image.
func image(t testing.TB, root *tree.Node) (*Image, []byte, *device) {
	t.Helper()
	tr := &tree.Tree{Root: root}
	d := layOut(tr)
	var b bytes.Buffer
	size, err := Write(&b, tr, d.size, d.place)
	if err != nil {
		t.Fatal(err)
	}
	if size != int64(b.Len()) {
		t.Fatalf("Write says %d bytes and wrote %d", size, b.Len())
	}
	m, err := Open(bytes.NewReader(b.Bytes()), size)
	if err != nil {
		t.Fatal(err)
	}
	return m, b.Bytes(), d
}

// roundTrip fails the test unless the image of a tree has the same content as the tree.
func roundTrip(t testing.TB, root *tree.Node) ([]byte, Stats) {
	t.Helper()
	m, b, d := image(t, root)
	if got := uint64(m.super.deviceBlocks) * BlockSize; got != d.size {
		t.Errorf("device size is %d, want %d", got, d.size)
	}
	want := map[string]*tree.Node{}
	flatten(want, "/", root)
	nodes := map[uint64]*tree.Node{}
	nids := map[*tree.Node]uint64{}
	finder := m.Finder()
	stats, err := m.Walk(context.Background(), func(path string, in Inode) error {
		n := want[path]
		delete(want, path)
		if n == nil {
			return fmt.Errorf("%q is not in the tree", path)
		}
		if nodes[in.Nid] != nil && nodes[in.Nid] != n || nids[n] != 0 && nids[n] != in.Nid {
			return fmt.Errorf("%q: nid %d stands for several nodes, or its node for several nids", path, in.Nid)
		}
		found, err := finder.Find(path)
		if nodes[in.Nid] != nil { // a further name, which has no xattrs in a walk
			if len(in.Xattrs) > 0 {
				return fmt.Errorf("%q: xattrs at a further name", path)
			}
			in.Xattrs = found.Xattrs
		}
		nodes[in.Nid], nids[n] = n, in.Nid
		if err != nil || !reflect.DeepEqual(found, in) {
			return fmt.Errorf("%q is %+v, found is %+v, %w", path, in, found, err)
		}
		if err := same(n, in, d); err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path := range want {
		t.Errorf("%q is not in the image", path)
	}
	if int(stats.Inodes) != len(nids) {
		t.Errorf("%d inodes, want %d", stats.Inodes, len(nids))
	}
	checked, err := m.Walk(context.Background(), nil)
	if err != nil || checked != stats {
		t.Errorf("Walk without visit: got %+v, %v; want %+v as with visit", checked, err, stats)
	}
	return b, stats
}

func flatten(to map[string]*tree.Node, path string, n *tree.Node) {
	to[path] = n
	if path != "/" {
		path += "/"
	}
	for _, c := range n.Children() {
		flatten(to, path+c.Name, c.Node)
	}
}

// same compares a node with an inode.
func same(n *tree.Node, in Inode, d *device) error {
	size := n.Size
	if n.IsDir() {
		size = in.Size
	}
	want := Inode{Nid: in.Nid, Mode: n.Mode, UID: n.UID, GID: n.GID, Nlink: n.Nlink, Mtime: n.Mtime,
		Rdev: n.Rdev, Size: size, Link: n.Link, Xattrs: n.Xattrs, Inline: n.Content.Inline}
	if at, ok := d.places[n]; ok {
		want.Device, want.Address = true, at
	}
	if len(want.Inline) == 0 {
		want.Inline = nil
	}
	if !reflect.DeepEqual(in, want) {
		return fmt.Errorf("is %.300s, want %.300s", fmt.Sprintf("%+v", in), fmt.Sprintf("%+v", want))
	}
	return nil
}

// randomTree returns a tree of about n names, with all kinds of inodes.
func randomTree(r *rand.Rand, n int) *tree.Node {
	var links []*tree.Node
	var build func(n, depth int) *tree.Node
	build = func(n, depth int) *tree.Node {
		taken := map[string]bool{}
		var children []tree.Dirent
		for n > 0 {
			child, cost := randomNode(r, &links), 1
			if r.IntN(4) == 0 && depth < 20 {
				cost += r.IntN(n)
				child = build(cost-1, depth+1)
			}
			n -= cost
			if s := randomName(r); !taken[s] {
				taken[s] = true
				children = append(children, name(s, child))
			}
		}
		return tree.NewDir(decorate(r, tree.Node{Mode: 0o755}), children)
	}
	root := build(n, 0)
	for _, l := range links {
		l.Nlink = max(2, l.Nlink)
	}
	return root
}

func randomName(r *rand.Rand) string {
	length := 1 + r.IntN(12)
	if r.IntN(30) == 0 {
		length = 200 + r.IntN(56)
	}
	b := make([]byte, length)
	for i := range b {
		if b[i] = byte(1 + r.IntN(255)); b[i] == '/' || r.IntN(3) > 0 {
			b[i] = "abc.-_"[r.IntN(6)]
		}
	}
	if s := string(b); s != "." && s != ".." {
		return s
	}
	return "x"
}

func randomNode(r *rand.Rand, links *[]*tree.Node) *tree.Node {
	var n *tree.Node
	switch r.IntN(10) {
	case 0, 1, 2:
		n = file(string(randomBytes(r, tree.InlineLimit)))
	case 3, 4:
		n = onDevice(1 + r.Int64N(1<<r.IntN(40)))
	case 5:
		n = symlink(string(bytes.ReplaceAll(randomBytes(r, 1+r.IntN(maxLink)), []byte{0}, []byte{1})) + "t")
	case 6:
		n = special([]uint32{tree.ModeChar, tree.ModeBlock}[r.IntN(2)]|0o600, uint64(r.Uint32()))
	case 7:
		n = special([]uint32{tree.ModeFIFO, tree.ModeSocket}[r.IntN(2)]|0o600, 0)
	default:
		if len(*links) > 0 && r.IntN(2) == 0 {
			l := (*links)[r.IntN(len(*links))]
			l.Nlink++
			return l
		}
		n = file("linked")
		*links = append(*links, n)
	}
	*n = decorate(r, *n)
	return n
}

func decorate(r *rand.Rand, n tree.Node) tree.Node {
	n.Mode |= r.Uint32N(8) << 9
	n.UID, n.GID = r.Uint32N(1<<r.IntN(32)), r.Uint32N(1<<r.IntN(32))
	n.Mtime = when(r.Int64N(1<<r.IntN(40)), r.Uint32N(1e9))
	if r.IntN(5) == 0 {
		all := []string{"security.capability", "system.posix_acl_access", "system.posix_acl_default", "trusted.t",
			"user.\xff\xfe"}
		for _, name := range all {
			if r.IntN(2) == 0 {
				n.Xattrs = append(n.Xattrs, x(name, string(randomBytes(r, 1<<r.IntN(14)))))
			}
		}
	}
	return n
}

func randomBytes(r *rand.Rand, limit int) []byte {
	b := make([]byte, r.IntN(limit))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}
