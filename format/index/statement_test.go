package index

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"lighter/test/testkit/golden"
)

func TestStatement(t *testing.T) {
	key := ed25519.NewKeyFromSeed(make([]byte, 32))
	public := key.Public().(ed25519.PublicKey)
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32)).Public().(ed25519.PublicKey)
	chain := "sha256:" + id(1).String()
	s := Sign(key, chain, id(2))
	if err := s.Verify(chain, []ed25519.PublicKey{other, public}); err != nil {
		t.Error(err)
	}
	encoded, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "statement.golden", string(encoded)+"\n")
	forged := s
	forged.Tree = id(3)
	newer := s
	newer.Format = Format + 1
	none := s
	none.Format = 0
	for name, err := range map[string]error{
		"another key":   s.Verify(chain, []ed25519.PublicKey{other}),
		"no key":        s.Verify(chain, nil),
		"a short key":   s.Verify(chain, []ed25519.PublicKey{public[:5]}),
		"another tree":  forged.Verify(chain, []ed25519.PublicKey{public}),
		"another chain": s.Verify("sha256:"+id(5).String(), []ed25519.PublicKey{public}),
		"newer format":  newer.Verify(chain, []ed25519.PublicKey{public}),
		"no format":     none.Verify(chain, []ed25519.PublicKey{public}),
	} {
		if err == nil {
			t.Errorf("%s: accepted, want an error", name)
		}
	}
	var tooNew *NewerFormatError
	if err := newer.Verify(chain, []ed25519.PublicKey{public}); !errors.As(err, &tooNew) || tooNew.Format != Format+1 {
		t.Errorf("a newer format: got %v, want a NewerFormatError", err)
	}
	if err := none.Verify(chain, []ed25519.PublicKey{public}); errors.As(err, &tooNew) {
		t.Errorf("format 0 counts as newer: %v", err)
	}
	text := FormatKey(public)
	if back, err := ParseKey(text); err != nil || !back.Equal(public) {
		t.Errorf("ParseKey(%q): got %v, %v; want the same key", text, back, err)
	}
	for _, bad := range []string{"", "ed25519:", "ed25519:AAAA", strings.TrimPrefix(text, "ed25519:"), text + "=",
		text + "\n", text[:len(text)-2] + "1="} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("ParseKey(%q): got no error, want one", bad)
		}
	}
}

// While a key is replaced, the statement is signed with both, and either suffices.
func TestStatementOfSeveralKeys(t *testing.T) {
	var keys []ed25519.PrivateKey
	var public []ed25519.PublicKey
	for i := range MaxKeys + 1 {
		keys = append(keys, ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i)}, 32)))
		public = append(public, keys[i].Public().(ed25519.PublicKey))
	}
	chain := "sha256:" + id(1).String()
	s := SignAll(keys[:2], chain, id(2))
	encoded, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "statement-2keys.golden", string(encoded)+"\n")
	var decoded Statement
	if err := json.Unmarshal(encoded, &decoded); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, true, false} {
		if err := decoded.Verify(chain, public[i:i+1]); err == nil != want || decoded.SignedBy(public[i]) != want {
			t.Errorf("key %d: %v, want valid: %v", i, err, want)
		}
	}
	// A reader of one signature finds that of the first key.
	var one struct {
		Chain     string
		Tree      string
		Format    int
		Signature []byte
	}
	if err := json.Unmarshal(encoded, &one); err != nil {
		t.Fatal(err)
	}
	old := Statement{Chain: one.Chain, Tree: id(2), Format: one.Format, Signature: one.Signature}
	if err := old.Verify(chain, public[:1]); err != nil || one.Tree != id(2).String() {
		t.Errorf("a reader of one signature: got %v, want no error and the same tree", err)
	}
	forged := decoded
	forged.Tree = id(3)
	if err := forged.Verify(chain, public); err == nil {
		t.Error("another tree was accepted")
	}
	if many := SignAll(keys, chain, id(2)); many.Verify(chain, public) == nil {
		t.Errorf("%d signatures were accepted, want an error", len(keys))
	}
	if most := SignAll(keys[:MaxKeys], chain, id(2)); most.Verify(chain, public[MaxKeys-1:MaxKeys]) != nil {
		t.Errorf("%d signatures were refused, want no error", MaxKeys)
	}
}

// FuzzStatement verifies that only the signed statement is accepted.
func FuzzStatement(f *testing.F) {
	key := ed25519.NewKeyFromSeed(make([]byte, 32))
	keys := []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}
	chain := "sha256:" + id(1).String()
	signed := Sign(key, chain, id(2))
	b, err := json.Marshal(signed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, chain)
	if b, err = json.Marshal(SignAll([]ed25519.PrivateKey{ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32)), key},
		chain, id(2))); err != nil {
		f.Fatal(err)
	}
	f.Add(b, chain)
	f.Add([]byte(`{"chain":"x\ntree y","format":1}`), "x\ntree y")
	f.Fuzz(func(t *testing.T, b []byte, asked string) {
		var s Statement
		if json.Unmarshal(b, &s) != nil || s.Verify(asked, keys) != nil {
			return
		}
		if asked != chain || s.Chain != chain || s.Tree != signed.Tree || s.Format != Format {
			t.Fatalf("%+v was accepted for %q", s, asked)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add(FormatKey(make([]byte, ed25519.PublicKeySize)))
	f.Add("ed25519:" + strings.Repeat("A", 44))
	f.Fuzz(func(t *testing.T, s string) {
		if key, err := ParseKey(s); err == nil && (len(key) != ed25519.PublicKeySize || FormatKey(key) != s) {
			t.Fatalf("%q is read as %q", s, FormatKey(key))
		}
	})
}
