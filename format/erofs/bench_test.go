package erofs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"

	"lighter/format/tree"
)

// benchTree returns a tree of n inodes like those of images: about 10 names in a directory, one
// file in three inline, some symlinks, names of 6 to 24 bytes.
func benchTree(n int) *tree.Tree {
	r := rand.New(rand.NewPCG(1, 1))
	var build func(n int) *tree.Node
	build = func(n int) *tree.Node {
		children := make([]tree.Dirent, 0, 16)
		for i := 0; n > 0; i++ {
			var child *tree.Node
			cost := 1
			switch k := r.IntN(20); {
			case k == 0:
				child = symlink(fmt.Sprintf("../lib%d.so.%d", i, k))
			case k < 7:
				child = file(string(make([]byte, r.IntN(300))))
			case k < 18 || n < 10:
				child = onDevice(1 + r.Int64N(100_000))
			default:
				cost = min(n, 1+r.IntN(n/2+1))
				child = build(cost - 1)
			}
			n -= cost
			children = append(children, name(fmt.Sprintf("%.*s%d", 4+r.IntN(16), "a_name_of_some_length", i), child))
		}
		return tree.NewDir(tree.Node{Mode: 0o755, Mtime: when(1, 1)}, children)
	}
	return &tree.Tree{Root: build(n - 1)}
}

// BenchmarkWrite measures the cost of an inode in a tree of a million.
func BenchmarkWrite(b *testing.B) {
	const inodes = 1_000_000
	t := benchTree(inodes)
	var next uint64
	place := func(n *tree.Node) uint64 {
		at := next
		next += uint64(blocksOf(n.Size)) * BlockSize
		return at
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var size int64
	for b.Loop() {
		next = 0
		var err error
		if size, err = Write(io.Discard, t, 1<<43, place); err != nil {
			b.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/inodes, "ns/inode")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N)/inodes, "B-allocated/inode")
	b.ReportMetric(float64(size)/inodes, "B-of-image/inode")
}

func BenchmarkPlanMemory(b *testing.B) {
	const inodes = 1_000_000
	t := benchTree(inodes)
	for b.Loop() {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := makePlan(t, 1<<43, func(*tree.Node) uint64 { return 0 })
		if err != nil {
			b.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/inodes, "B-held/inode")
		runtime.KeepAlive(p)
	}
}

func BenchmarkWalk(b *testing.B) {
	const inodes = 1_000_000
	var image bytes.Buffer
	size, err := Write(&image, benchTree(inodes), 1<<43, func(*tree.Node) uint64 { return 0 })
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		m, err := Open(bytes.NewReader(image.Bytes()), size)
		if err != nil {
			b.Fatal(err)
		}
		stats, err := m.Walk(context.Background(), nil)
		if err != nil || stats.Inodes != inodes {
			b.Fatal(stats, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/inodes, "ns/inode")
	b.ReportAllocs()
}
