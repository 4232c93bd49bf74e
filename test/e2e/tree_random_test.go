//go:build e2e

package e2e

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"lighter/test/testkit/tarball"
)

var (
	randomTrees    = flag.Int("trees", 600, "number of random chains in each half of TestRandomTrees")
	randomTreeSeed = flag.Uint64("trees-seed", rand.Uint64(), "seed of the second half of TestRandomTrees")
)

// TestRandomTrees compares Lighter's trees of random chains with containerd's. The seeds of the
// first half are fixed, those of the second half are new in each run. The name of a chain's subtest
// is its seed. To repeat a failure: go test -tags e2e -run TestRandomTrees -trees 1 -trees-seed
// SEED.
func TestRandomTrees(t *testing.T) {
	accepted := 0
	for _, start := range []uint64{1, *randomTreeSeed} {
		for i := range uint64(*randomTrees) {
			seed := start + i
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				m := layerMaker{Rand: rand.New(rand.NewPCG(seed, 0)), mild: seed%3 > 0, deep: 1 + int(seed%4)%3}
				if !compareTrees(t, memoryLayers(m.chain()), unpackQuickly, listTree) {
					accepted++
				}
			})
		}
	}
	t.Logf("%d of %d chains were accepted", accepted, 2**randomTrees)
	if *randomTrees >= 100 && accepted < *randomTrees {
		t.Errorf("%d of %d chains were accepted, want at least half", accepted, 2**randomTrees)
	}
}

// A layerMaker makes layers of random entries. It uses few names, so that entries often have the
// same name.
type layerMaker struct {
	*rand.Rand
	mild bool     // leaves out entries that Lighter refuses
	deep int      // how likely a path has one more component, in fifths
	used []string // names used in the current layer
}

// pick returns a random element of from.
func pick[T any](m *layerMaker, from ...T) T { return from[m.IntN(len(from))] }

// chain returns the layers of a chain.
func (m *layerMaker) chain() [][]byte {
	var layers [][]byte
	for range 1 + m.IntN(4) {
		m.used = nil
		var items []tarball.Item
		layers = append(layers, tarball.Of())
		for range 1 + m.IntN(pick(m, 4, 7, 14)) {
			more := append(items[:len(items):len(items)], m.item())
			layers[len(layers)-1] = tarball.Of(more...)
			// A chain with one refused entry is refused as a whole, and tests nothing else.
			if _, err := applyLayers(memoryLayers(layers), digestContent); err == nil || !m.mild {
				items = more
			}
		}
		layers[len(layers)-1] = tarball.Of(items...)
	}
	return layers
}

func (m *layerMaker) item() tarball.Item {
	number := func() int64 { return pick[int64](m, 0, 0, 1, 300, 5000, 1<<20+1) }
	switch m.IntN(16) {
	case 0, 1, 2, 3:
		return tarball.File(m.name(), pick(m, "", "x", "hello"), m.options()...)
	case 4, 5, 6, 7, 8:
		return tarball.Dir(m.name(), m.options()...)
	case 9, 10:
		return tarball.Symlink(m.name(), m.target(), m.options()...)
	case 11:
		target := m.target()
		if m.mild && len(m.used) > 0 {
			target = m.used[m.IntN(len(m.used))]
		}
		return tarball.Link(m.name(), target, m.options()...)
	case 12:
		if m.IntN(3) == 0 {
			return tarball.FIFO(m.name(), m.options()...)
		}
		return pick(m, tarball.Char, tarball.Block)(m.name(), number(), number(), m.options()...)
	case 13, 14:
		return tarball.Whiteout(m.name(), m.options()...)
	}
	if m.IntN(8) == 0 {
		return tarball.Global(m.name())
	}
	return tarball.Opaque(m.name())
}

func (m *layerMaker) name() string {
	parts := []string{"a", "b", "c", "d", "a", "b", "c", "d", "l", "l", "m", "..", ".", ".wh.a", "e"}
	if m.mild {
		parts = []string{"a", "b", "c", "d", "e", "l"}
	}
	name := pick(m, parts...)
	for m.IntN(5) < m.deep {
		name += "/" + pick(m, parts...)
	}
	name = pick(m, "", "", "", "", "/", "./", "../") + name
	m.used = append(m.used, name)
	return name
}

func (m *layerMaker) target() string {
	return pick(m, m.name(), m.name(), m.name(), "/", ".", "..", "a", "b", "l", "m", "../a", "/b/l", "a/../b", "//a",
		"b/",
		"./c/l", "/a/../l", "../../x", "nowhere", m.walk(), m.walk(), m.walk())
}

// walk returns a path whose components go down into directories and up with dot-dot.
func (m *layerMaker) walk() string {
	p := pick(m, "", "", "/")
	for range 1 + m.IntN(4) {
		p += pick(m, "a", "b", "c", "l", "m", "..", "..") + "/"
	}
	return p[:len(p)-m.IntN(2)]
}

func (m *layerMaker) options() []tarball.Option {
	var o []tarball.Option
	if m.IntN(3) == 0 {
		o = append(o, tarball.Mode(pick[int64](m, 0o644, 0o755, 0o4755, 0o2755, 0o2777, 0o1777, 0, 0o7777, 0o100644,
			0o2070)))
	}
	if m.IntN(3) == 0 {
		id := func() int64 {
			return pick[int64](m, 0, 1, 1000, 65534, 4294967295, 4294967296, 1<<40+5, -1, 4294967294)
		}
		o = append(o, tarball.Owner(id(), id()))
	}
	if m.IntN(3) == 0 {
		o = append(o, tarball.Time(pick[int64](m, 0, 1, 1234567890, -1, 9223372036, 9223372037, 1<<40),
			pick[int64](m, 0, 1, 999999999, 854775807, 854775808)))
	}
	for m.IntN(4) == 0 {
		o = append(o, m.xattr())
	}
	return o
}

func (m *layerMaker) xattr() tarball.Option {
	switch m.IntN(10) {
	case 0, 1, 2:
		return tarball.Xattr(pick(m, "system.posix_acl_access", "system.posix_acl_default"), m.acl())
	case 3, 4:
		return tarball.Xattr("security.capability", m.capability())
	}
	return tarball.Xattr(pick(m, "user.a", "user.b", "user.overlay.opaque", "security.a", "security.a", "trusted.a",
		"trusted.overlay.opaque", "other.a", "system.a", "user.a"), pick(m, "", "y", "\x00\xff=\n", "value"))
}

func (m *layerMaker) acl() string {
	if m.IntN(20) == 0 {
		return pick(m, "", "\x02\x00\x00\x00", "\x01\x00\x00\x00", "x", "\x02\x00\x00\x00\x00")
	}
	b := []byte{2, 0, 0, 0}
	add := func(tag uint16, id uint32) {
		perm := uint16(m.IntN(8))
		switch m.IntN(100) {
		case 0, 1:
			return
		case 2:
			perm = 8
		}
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, perm)
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	add(1, pick[uint32](m, 0, 0xffffffff))
	named := false
	for m.IntN(3) == 0 {
		add(2, pick[uint32](m, 0, 5, 1000))
		named = true
	}
	add(4, 0xffffffff)
	for m.IntN(4) == 0 {
		add(8, pick[uint32](m, 0, 5, 1000))
		named = true
	}
	if named || m.IntN(4) == 0 {
		add(16, 7)
	}
	add(32, 0)
	return string(b)
}

func (m *layerMaker) capability() string {
	if m.IntN(12) == 0 {
		return ""
	}
	b := []byte{pick[byte](m, 0, 1, 0, 1, 0, 1, 2), 0, 0, pick[byte](m, 2, 2, 2, 2, 3, 3, 3, 1)}
	b = append(b, "0123456789abcdef"...)
	if b[3] == 3 {
		b = binary.LittleEndian.AppendUint32(b, pick[uint32](m, 0, 1000, 0, 0xffffffff))
	}
	return string(b)
}
