package direct

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/stargz"
	"lighter/test/testkit/tarball"
)

func atOnce(ctx context.Context, _ int64) error { return ctx.Err() }

// verifyAll verifies all that is to be verified, once, and returns how many images that were.
func verifyAll(t *testing.T, m *Images) int {
	t.Helper()
	tasks := m.tasks()
	for key, task := range tasks {
		if !m.try(t.Context(), task, 0, atOnce) {
			t.Logf("%s is not verified: %s", key, m.Status().Failed)
		}
	}
	return len(tasks)
}

func isRefused(err error) bool {
	return errors.Is(err, chunk.ErrNotFound) && errors.As(err, new(wrongError))
}

// layerOf returns a layer with a program.
func layerOf(program string) []byte {
	return tarball.Of(tarball.Dir("bin"), tarball.File("bin/sh", strings.Repeat(program, 50_000), tarball.Mode(0o755)),
		tarball.File("etc-a", "first"), tarball.File("etc-b", "other"))
}

// attacks are ways in which an image's table can be that of another layer than its diffID says. The
// callbacks are those of push.
var attacks = map[string]func(t *testing.T, f *fake, victim pushed) func(p *pushed, ztocs [][]byte){
	// The config has the diffIDs of another image. The layers are the attacker's.
	"borrowed diffIDs": func(_ *testing.T, _ *fake, victim pushed) func(*pushed, [][]byte) {
		return func(p *pushed, _ [][]byte) { p.diffIDs = victim.diffIDs }
	},
	// The layer's tar is the victim's, and the table gives a file the contents of another one.
	"lying table": func(t *testing.T, f *fake, victim pushed) func(*pushed, [][]byte) {
		return func(p *pushed, ztocs [][]byte) {
			p.diffIDs, p.layers = victim.diffIDs, victim.layers
			if ztocs[0] != nil {
				ztocs[0] = swap(ztocs[0], "etc-a", "etc-b")
			} else {
				p.layers = []v1.Descriptor{f.withLyingTable(t, victim.layers[0])}
			}
		}
	},
}

// withLyingTable adds a layer of zstd:chunked with the tar of another one, and a wrong table.
func (f *fake) withLyingTable(t *testing.T, d v1.Descriptor) v1.Descriptor {
	t.Helper()
	blob := f.blobs[d.Digest]
	at, _, err := stargz.Locate(d.Annotations, d.Size)
	if err != nil {
		t.Fatal(err)
	}
	r, err := compress.Layer(bytes.NewReader(blob[at.Offset:][:at.Length]))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	text = swap(text, "etc-a", "etc-b")
	stored, err := compress.ZstdFrame(zstd.SpeedFastest, 1)(text)
	if err != nil {
		t.Fatal(err)
	}
	made := binary.LittleEndian.AppendUint32(slices.Clone(blob[:at.DataEnd]), 0x184d2a50) // a skippable frame
	made = binary.LittleEndian.AppendUint32(made, uint32(len(stored)))
	lying := f.blob(append(made, stored...))
	lying.MediaType = d.MediaType
	lying.Annotations = map[string]string{stargz.ContainersChecksum: digest.FromBytes(stored).String(),
		stargz.ContainersPosition: fmt.Sprintf("%d:%d:%d:1", at.Offset, len(stored), len(text))}
	return lying
}

func swap(b []byte, one, other string) []byte {
	b = bytes.ReplaceAll(b, []byte(one), []byte("\x00temp"))
	b = bytes.ReplaceAll(b, []byte(other), []byte(one))
	return bytes.ReplaceAll(b, []byte("\x00temp"), []byte(other))
}

func forEachAttack(t *testing.T, fn func(t *testing.T, f *fake, victim, attacker pushed)) {
	t.Helper()
	for _, format := range lazyFormats {
		for name, attack := range attacks {
			if name == "lying table" && format.name == "eStargz" {
				continue // its table is in the tar, so it has its own diffID
			}
			t.Run(format.name+", "+name, func(t *testing.T) {
				f := startFake(t)
				victim := f.push(t, "good/x", format, nil, layerOf("good"))
				archive := layerOf("evil")
				if name == "lying table" {
					archive = layerOf("good")
				}
				fn(t, f, victim, f.push(t, "bad/y", format, attack(t, f, victim), archive))
			})
		}
	}
}

// An image that borrows another's diffIDs, with tables of its own, is not answered if its
// repository is not trusted, whatever else is known.
func TestAttackFromAnUntrustedRepository(t *testing.T) {
	forEachAttack(t, func(t *testing.T, f *fake, victim, attacker pushed) {
		m := f.images(t, t.TempDir(), []string{"good/**"}, nil)
		if _, err := f.ask(t, m, victim); err != nil {
			t.Fatal(err)
		}
		if tree, err := f.ask(t, m, attacker); err == nil || !strings.Contains(err.Error(), "whose tables count") {
			t.Errorf("got %s, %v", tree.Short(), err)
		}
	})
}

// If its repository is trusted, the node finds it, reports it, and never answers it again. The
// other image is not affected. All of this survives a restart.
func TestAttackFromATrustedRepository(t *testing.T) {
	forEachAttack(t, func(t *testing.T, f *fake, victim, attacker pushed) {
		root := t.TempDir()
		m := f.images(t, root, []string{"**"}, nil)
		good, err := f.ask(t, m, victim)
		if err != nil {
			t.Fatal(err)
		}
		evil, err := f.ask(t, m, attacker)
		if err != nil || evil == good {
			t.Fatalf("before its layers were read: %v; the trees are %s and %s", err, evil.Short(), good.Short())
		}
		if n := verifyAll(t, m); n != 2 {
			t.Errorf("%d images were to be verified, want 2", n)
		}
		for _, when := range []string{"at once", "after a restart"} {
			if err := m.Refused(evil); !errors.As(err, new(wrongError)) {
				t.Errorf("%s: the tree of the attacker: %v", when, err)
			}
			if err := m.Refused(good); err != nil {
				t.Errorf("%s: the tree of the victim: %v", when, err)
			}
			if _, err := f.ask(t, m, attacker); !isRefused(err) {
				t.Errorf("%s: a pull of the attacker's image: %v", when, err)
			}
			if again, err := f.ask(t, m, victim); err != nil || again != good {
				t.Errorf("%s: a pull of the victim's image: %v", when, err)
			}
			chain := identity.ChainID(slices.Clone(victim.diffIDs)).String()
			if s, err := m.Answerer(Formats()...).Tree(t.Context(), chain); err != nil || s.Tree != good {
				t.Errorf("%s: the tree of the chain: %+v, %v", when, s, err)
			}
			if s := m.Status(); s != (Status{Trees: 2, Wrong: 1}) {
				t.Errorf("%s: status %+v", when, s)
			}
			if n := verifyAll(t, m); n != 0 {
				t.Errorf("%s: %d images are verified again", when, n)
			}
			m = f.images(t, root, []string{"**"}, nil)
		}
	})
}

// Where repositories are not trusted, the first pull is an ordinary one. Once the layers were
// verified, the victim's image starts lazily, and the attacker's never does.
func TestAttackWithVerifiedRepositories(t *testing.T) {
	forEachAttack(t, func(t *testing.T, f *fake, victim, attacker pushed) {
		m := f.images(t, t.TempDir(), nil, []string{"**"})
		for _, p := range []pushed{victim, attacker} {
			if _, err := f.ask(t, m, p); !errors.Is(err, errUnverified) || !errors.Is(err, chunk.ErrNotFound) {
				t.Fatalf("the first pull of %s: %v", p.repository, err)
			}
		}
		if s := m.Status(); s.Waiting != 2 || s.Trees != 0 {
			t.Errorf("status %+v", s)
		}
		verifyAll(t, m)
		if s := m.Status(); s.Waiting != 0 || s.Failed != "" {
			t.Errorf("status %+v", s)
		}
		if _, err := f.ask(t, m, victim); err != nil {
			t.Errorf("the victim's image: %v", err)
		}
		if _, err := f.ask(t, m, attacker); !isRefused(err) {
			t.Errorf("the attacker's image: %v", err)
		}
	})
}

// A layer is read once, whatever images have it, and however often the node starts.
func TestLayersAreReadOnce(t *testing.T) {
	f := startFake(t)
	noise := make([]byte, 4*minTail)                // the table alone is read of it
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise) // it never fails
	base := tarball.Of(tarball.File("base", string(noise)))
	top := tarball.Of(tarball.File("top", strings.Repeat("top", 10_000)))
	one := f.push(t, "a/one", lazyFormats[0], nil, base)
	two := f.push(t, "a/two", lazyFormats[0], nil, base, top)
	root := t.TempDir()
	m := f.images(t, root, []string{"**"}, nil)
	verified := func(p pushed, want int) {
		t.Helper()
		if _, err := f.ask(t, m, p); err != nil {
			t.Fatal(err)
		}
		before := f.received(one.layers[0].Digest)
		verifyAll(t, m)
		got := f.received(one.layers[0].Digest) - before
		if size := int(one.layers[0].Size); want == 1 && got < size || want == 0 && got >= size {
			t.Errorf("%s: %d bytes of the layer were read, of %d", p.repository, got, size)
		}
		if s := m.Status(); s.Unverified != 0 || s.Wrong != 0 {
			t.Errorf("%s: status %+v", p.repository, s)
		}
	}
	verified(one, 1)
	m = f.images(t, root, []string{"**"}, nil)
	verified(two, 0)
}

// A registry that does not give a layer, or another one, says nothing about its table. The node
// tries again.
func TestLayersThatCannotBeRead(t *testing.T) {
	f := startFake(t)
	p := f.push(t, "a/image", lazyFormats[0], nil, layerOf("good"))
	m := f.images(t, t.TempDir(), []string{"**"}, nil)
	tree, err := f.ask(t, m, p)
	if err != nil {
		t.Fatal(err)
	}
	blob := f.blobs[p.layers[0].Digest]
	for what, content := range map[string][]byte{
		"other bytes": append(bytes.Repeat([]byte{7}, 20), blob[20:]...), "none": nil,
	} {
		f.mu.Lock()
		f.blobs[p.layers[0].Digest] = content
		f.mu.Unlock()
		verifyAll(t, m)
		if s := m.Status(); s.Unverified != 1 || s.Wrong != 0 || s.Failed == "" || m.Refused(tree) != nil {
			t.Errorf("%s: status %+v, refused %v", what, s, m.Refused(tree))
		}
	}
	f.mu.Lock()
	f.blobs[p.layers[0].Digest] = blob
	f.mu.Unlock()
	verifyAll(t, m)
	if s := m.Status(); s != (Status{Trees: 1}) {
		t.Errorf("in the end: status %+v", s)
	}
}

// If the registry has another index for an image than when its tree was made, nothing is found out
// about that tree: what was verified is not what it was made of.
func TestOtherIndexThanBefore(t *testing.T) {
	f := startFake(t)
	format := lazyFormats[2]
	p := f.push(t, "a/image", format, func(_ *pushed, ztocs [][]byte) { ztocs[0] = swap(ztocs[0], "etc-a", "etc-b") },
		layerOf("good"))
	m := f.images(t, t.TempDir(), []string{"**"}, nil)
	if _, err := f.ask(t, m, p); err != nil {
		t.Fatal(err)
	}
	honest := f.push(t, "a/image", format, nil, layerOf("good")) // of the same manifest
	if honest.manifest != p.manifest {
		t.Fatal("the manifests differ")
	}
	verifyAll(t, m)
	if s := m.Status(); s.Unverified != 1 || !strings.Contains(s.Failed, "has other tables for it now") {
		t.Errorf("status %+v", s)
	}
}

// Images without tables do not wait any longer once that is known.
func TestNothingToVerify(t *testing.T) {
	f := startFake(t)
	plain := lazyFormat{layer: func(t *testing.T, archive []byte) (blob, ztoc []byte, _ map[string]string) {
		blob, _, _ = zipped(t, archive)
		return blob, nil, nil
	}}
	p := f.push(t, "a/image", plain, nil, layerOf("good"))
	m := f.images(t, t.TempDir(), nil, []string{"**"})
	if _, err := f.ask(t, m, p); !errors.Is(err, errUnverified) {
		t.Fatal(err)
	}
	verifyAll(t, m)
	if s := m.Status(); s != (Status{}) {
		t.Errorf("status %+v", s)
	}
}

// Images that wait, and what was found out, are bounded. What was found wrong stays the longest.
func TestVerifyingIsBounded(t *testing.T) {
	w := waiting{}
	for i := range maxWaiting + 10 {
		w.add(place{Repository: "registry.test/a", Manifest: digest.FromString(fmt.Sprint(i))})
	}
	if n := len(w.list()); n != maxWaiting {
		t.Errorf("%d images wait, want %d", n, maxWaiting)
	}
	v := &verdicts{by: map[claim]verdict{}}
	of := func(i int, wrong string) verdict {
		return verdict{claim: claim{Table: chunk.Sum([]byte(fmt.Sprint(i)))}, Wrong: wrong}
	}
	for i := range maxVerdicts {
		wrong := ""
		if i == 0 {
			wrong = "wrong"
		}
		v.all = append(v.all, of(i, wrong))
		v.by[v.all[i].claim] = v.all[i]
	}
	for i := range 10 {
		v.insert(of(maxVerdicts+i, ""))
	}
	if len(v.all) != maxVerdicts || len(v.by) != maxVerdicts {
		t.Errorf("%d verdicts, %d by their claims, want %d", len(v.all), len(v.by), maxVerdicts)
	}
	if _, known := v.of(of(0, "").claim); !known {
		t.Error("what was wrong is forgotten")
	}
	if _, known := v.of(of(1, "").claim); known {
		t.Error("the oldest verdict is kept")
	}
}

// A list of verdicts that cannot be read is reported, and the node starts without it.
func TestVerdictsThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	if err := durable.Replace(dir+"/verified", []byte("[{")); err != nil {
		t.Fatal(err)
	}
	left := &durable.Leftovers{Log: nil}
	v := openVerdicts(dir, left)
	if len(v.all) != 0 || len(left.List()) != 1 {
		t.Errorf("%d verdicts, leftovers %v", len(v.all), left.List())
	}
}

// Verify verifies an image some time after its pull, and ends with its context.
func TestVerifyEndsWithItsContext(t *testing.T) {
	f := startFake(t)
	p := f.push(t, "a/image", lazyFormats[0], nil, layerOf("good"))
	m := f.images(t, t.TempDir(), []string{"**"}, nil)
	if _, err := f.ask(t, m, p); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.set(func(http.ResponseWriter, *http.Request) bool { cancel(); return false })
	task := slices.Collect(maps.Values(m.tasks()))[0]
	if m.try(ctx, task, 0, atOnce) {
		t.Error("it was verified")
	}
	if s := m.Status(); s.Failed != "" {
		t.Errorf("the end of the node is reported as a failure: %s", s.Failed)
	}
	m.Verify(ctx, atOnce) // returns
}

// A verified layer says nothing about another table of it.
func TestOtherTableOfAVerifiedLayer(t *testing.T) {
	f := startFake(t)
	format := lazyFormats[2]
	victim := f.push(t, "good/x", format, nil, layerOf("good"))
	m := f.images(t, t.TempDir(), nil, []string{"**"})
	if _, err := f.ask(t, m, victim); !errors.Is(err, errUnverified) {
		t.Fatal(err)
	}
	verifyAll(t, m)
	attacker := f.push(t, "bad/y", format, attacks["lying table"](t, f, victim), layerOf("good"))
	if attacker.layers[0].Digest != victim.layers[0].Digest {
		t.Fatal("the layers differ")
	}
	if tree, err := f.ask(t, m, attacker); !errors.Is(err, errUnverified) {
		t.Errorf("got tree %s, %v", tree.Short(), err)
	}
	verifyAll(t, m)
	if _, err := f.ask(t, m, attacker); !isRefused(err) {
		t.Errorf("in the end: %v", err)
	}
	if _, err := f.ask(t, m, victim); err != nil {
		t.Errorf("the victim's image: %v", err)
	}
}

// Layers are read in pieces. Before each of them the node waits until it may read it.
func TestPieces(t *testing.T) {
	f := startFake(t)
	random := make([]byte, 2*pieceSize)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(random) // it never fails
	p := f.push(t, "a/image", lazyFormats[0], nil, tarball.Of(tarball.File("random", string(random))))
	m := f.images(t, t.TempDir(), []string{"**"}, nil)
	if _, err := f.ask(t, m, p); err != nil {
		t.Fatal(err)
	}
	var waited []int64
	task := slices.Collect(maps.Values(m.tasks()))[0]
	if !m.try(t.Context(), task, 0, func(_ context.Context, bytes int64) error {
		waited = append(waited, bytes)
		return nil
	}) {
		t.Fatal(m.Status().Failed)
	}
	if want := []int64{pieceSize, pieceSize, p.layers[0].Size - 2*pieceSize}; !slices.Equal(waited, want) {
		t.Errorf("waited for pieces of %v bytes, want %v", waited, want)
	}
}
