package wire

import (
	"strings"
	"testing"
)

func TestNamesGoToTheRegistryAndBack(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	for _, c := range []struct{ name, repository, reference, back string }{
		{"base", "base", "latest", "base:latest"},
		{"foo/bar:1", "foo/bar", "1", "foo/bar:1"},
		{"docker.io/library/alpine:3", "docker.io/library/alpine", "3", "docker.io/library/alpine:3"},
		{"localhost:5000/a/b:1", "localhost_5000/a/b", "1", "localhost:5000/a/b:1"},
		{"reg.example:443/a", "reg.example_443/a", "latest", "reg.example:443/a:latest"},
		{"reg.example/a@" + digest, "reg.example/a", digest, "reg.example/a@" + digest},
		{"reg.example:1/a:tag@" + digest, "reg.example_1/a", digest, "reg.example:1/a@" + digest},
		{"a:5000", "a", "5000", "a:5000"}, // no slash: 5000 is a tag
	} {
		ref, err := ParseName(c.name)
		if err != nil || ref.Repository != c.repository || ref.Reference() != c.reference {
			t.Errorf("%s: %q %q, %v", c.name, ref.Repository, ref.Reference(), err)
			continue
		}
		if back := ref.Name(); back != c.back {
			t.Errorf("%s came back as %s", c.name, back)
		}
	}
}

func TestWhatIsNotAName(t *testing.T) {
	for _, name := range []string{"", ":1", "a:", "A/b", "a//b", "../b", "a/../b", "a:b:c", "a@sha256:12", "a@md5:12",
		"[::1]:5000/a", "a b", "http://a/b", "a:" + strings.Repeat("x", 129), strings.Repeat("a", 256), "a/b\x00"} {
		if ref, err := ParseName(name); err == nil {
			t.Errorf("%q was taken for %+v", name, ref)
		}
	}
}

func FuzzParseName(f *testing.F) {
	f.Add("localhost:5000/a/b:1")
	f.Add("a_1/b")
	f.Fuzz(func(t *testing.T, name string) {
		ref, err := ParseName(name)
		if err != nil {
			return
		}
		again, err := ParseName(ref.Name())
		if err != nil || again != ref {
			t.Errorf("%q is %+v, whose name %q is %+v (%v)", name, ref, ref.Name(), again, err)
		}
	})
}
