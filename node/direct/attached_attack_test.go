package direct

import (
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/store/attachment"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/registrytest"
)

// An image that borrows another's diffIDs has the same chain, and so finds the other's index under
// the chain's tag. That index says nothing of the image, and lighter attach makes none for it.
func TestAttackOnAttached(t *testing.T) {
	r, key, indexes := registrytest.Start(t, true), signer(1), "/indexes"
	dir, evil := plainImage(t, 1, 2), plainImage(t, 1, 3)
	borrowed, err := layout.Config(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := layout.Manifest(evil)
	if err == nil {
		err = layout.Write(evil, manifest, borrowed)
	}
	if err != nil {
		t.Fatal(err)
	}
	victim, _ := r.Push(t, dir, "good/image:1")
	attacker, _ := r.Push(t, evil, "bad/image:1")
	im := attachTo(t, victim, key, attachment.Place{Chains: r.Host + indexes})
	all, err := attachment.Images(t.Context(), attacker, "linux/amd64", false)
	if err != nil || all[0].Chain() != im.Chain() {
		t.Fatalf("images %+v, %v, want one with the chain %s", all, err, im.Chain())
	}
	m := believing(t, r, t.TempDir(), key, r.Host+indexes)
	a := m.Answerer("attached")
	good, err := a.Answer(t.Context(), pulled(im, victim))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := a.Answer(t.Context(), pulled(all[0], attacker))
	if !errors.Is(err, chunk.ErrNotFound) || !strings.Contains(err.Error(), "is the index of manifest "+
		im.Manifest.Digest.String()) {
		t.Errorf("the attacker's image: answer %+v, %v", answer, err)
	}
	s, err := a.Tree(t.Context(), im.Chain())
	if err != nil || s.Tree != good.Image.Statement.Tree {
		t.Errorf("the tree of the chain: %+v, %v, want the victim's", s, err)
	}
	_, err = attachment.Attach(t.Context(), all[0], attachment.Place{},
		attachment.Options{Keys: []ed25519.PrivateKey{key}})
	if err == nil || !strings.Contains(err.Error(), "the config says "+borrowed.RootFS.DiffIDs[1].String()) {
		t.Errorf("an index is attached to the attacker's image: %v", err)
	}
}
