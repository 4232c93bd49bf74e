package blobs

import (
	"math"
	"strings"
	"testing"
)

var (
	manifestDigest = "sha256:" + strings.Repeat("0a", 32)
	layerDigest    = "sha256:" + strings.Repeat("f1", 32)
)

func TestName(t *testing.T) {
	for _, size := range []int64{1, 1 << 40, math.MaxInt64} {
		n := name{size, manifestDigest, layerDigest}
		if got, ok := parseName(n.String()); !n.isValid() || !ok || got != n {
			t.Errorf("%s: got %+v, %t", n, got, ok)
		}
	}
	good := name{7, manifestDigest, layerDigest}.String()
	for _, text := range []string{
		"", "x", "0" + good, "-" + good, "+" + good, good + "0", good[:len(good)-1], strings.ToUpper(good), good + "\n",
		"0" + good[1:], "99999999999999999999" + good[1:], "9999999999999999999" + good[1:], "7/" + good, good + "-7",
	} {
		if n, ok := parseName(text); ok {
			t.Errorf("%q: got %+v, want no name", text, n)
		}
	}
	for _, n := range []name{{0, manifestDigest, layerDigest}, {-1, manifestDigest, layerDigest}, {1, "", layerDigest},
		{1, manifestDigest, "sha512:" + strings.Repeat("0", 128)}} {
		if n.isValid() {
			t.Errorf("%+v is valid", n)
		}
	}
}

// Each text is no name, or the only text of its name.
func FuzzName(f *testing.F) {
	f.Add(name{7, manifestDigest, layerDigest}.String())
	f.Add("07-" + hexOf(manifestDigest) + "-" + hexOf(layerDigest))
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if n, ok := parseName(text); ok && (n.String() != text || !n.isValid()) {
			t.Errorf("%q: got %+v, which is %q", text, n, n)
		}
	})
}
