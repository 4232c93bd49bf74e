package wire

import (
	"strings"
	"testing"
)

func TestParseName(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	for _, c := range []struct{ name, repository, reference, back string }{
		{"base", "base", "latest", "base:latest"},
		{"foo/bar:1", "foo/bar", "1", "foo/bar:1"},
		{"docker.io/library/alpine:3", "docker.io/library/alpine", "3", "docker.io/library/alpine:3"},
		{"localhost:5000/a/b:1", "localhost_5000/a/b", "1", "localhost:5000/a/b:1"},
		{"localhost_5000/a/b:1", "localhost_5000/a/b", "1", "localhost:5000/a/b:1"},
		{"reg.example:443/a", "reg.example_443/a", "latest", "reg.example:443/a:latest"},
		{"10.1.2.3:443/a", "10.1.2.3_443/a", "latest", "10.1.2.3:443/a:latest"},
		{"reg.example/a@" + digest, "reg.example/a", digest, "reg.example/a@" + digest},
		{"reg.example:1/a:tag@" + digest, "reg.example_1/a", digest, "reg.example:1/a@" + digest},
		{"a:5000", "a", "5000", "a:5000"}, // no slash: 5000 is a tag
		{"a_5000", "a_5000", "latest", "a_5000:latest"},
	} {
		ref, err := ParseName(c.name)
		if err != nil || ref.Repository != c.repository || ref.Reference() != c.reference {
			t.Errorf("%s: got %q %q, %v; want %q %q", c.name,
				ref.Repository, ref.Reference(), err, c.repository, c.reference)
			continue
		}
		if back := ref.Name(); back != c.back {
			t.Errorf("%s: got the name %s, want %s", c.name, back, c.back)
		}
	}
}

func TestInvalidNames(t *testing.T) {
	for _, name := range []string{"", ":1", "a:", "A/b", "a/B", "Reg.example:5000/b", "a//b", "../b", "a/../b", "a:b:c",
		"a@sha256:12", "a@md5:12",
		"a@sha512:" + strings.Repeat("ab", 64), "a@sha256:" + strings.Repeat("AB", 32),
		"@sha256:" + strings.Repeat("ab", 32),
		"[::1]:5000/a", "[::1]/a", "a b", "http://a/b", "a:" + strings.Repeat("x", 129), strings.Repeat("a", 256),
		"reg.example/" + strings.Repeat("a", 250), "a/b\x00", "a:5000:5000/b", "a/b\n"} {
		if ref, err := ParseName(name); err == nil {
			t.Errorf("%q: got %+v, want an error", name, ref)
		} else if !strings.HasPrefix(err.Error(), "image name ") {
			t.Errorf("%q: the error %q does not begin with the operation", name, err)
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
			t.Errorf("%q is %+v, and its name %q is %+v (%v)", name, ref, ref.Name(), again, err)
		}
	})
}
