package index

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"testing"
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
	golden(t, "statement.golden", string(encoded)+"\n")
	forged := s
	forged.Tree = id(3)
	newer := s
	newer.Format = 2
	for name, err := range map[string]error{
		"another key":   s.Verify(chain, []ed25519.PublicKey{other}),
		"no key":        s.Verify(chain, nil),
		"a short key":   s.Verify(chain, []ed25519.PublicKey{public[:5]}),
		"another tree":  forged.Verify(chain, []ed25519.PublicKey{public}),
		"another chain": s.Verify("sha256:"+id(5).String(), []ed25519.PublicKey{public}),
		"newer format":  newer.Verify(chain, []ed25519.PublicKey{public}),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	text := FormatKey(public)
	if back, err := ParseKey(text); err != nil || !back.Equal(public) {
		t.Errorf("ParseKey(%q) = %v, %v", text, back, err)
	}
	for _, bad := range []string{"", "ed25519:", "ed25519:AAAA", strings.TrimPrefix(text, "ed25519:"), text + "=", text + "\n", text[:len(text)-2] + "1="} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("ParseKey(%q) succeeded", bad)
		}
	}
}

// FuzzStatement reads anything as a statement. None is believed but the one that
// was signed.
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
	f.Add([]byte(`{"chain":"x\ntree y","format":1}`), "x\ntree y")
	f.Fuzz(func(t *testing.T, b []byte, asked string) {
		var s Statement
		if json.Unmarshal(b, &s) != nil || s.Verify(asked, keys) != nil {
			return
		}
		if asked != chain || s.Chain != chain || s.Tree != signed.Tree || s.Format != Format {
			t.Fatalf("%+v is believed of %q", s, asked)
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
