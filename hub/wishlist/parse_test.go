package wishlist

import (
	"fmt"
	"strings"
	"testing"
)

// A wishlist of DUCC is accepted as it is.
func TestDUCCsWishlist(t *testing.T) {
	p, err := Parse([]byte(`version: 1
user: cvmfsunpacker
cvmfs_repo: 'unpacked.example.org'
output_format: '$(scheme)://$(registry)/$(repository)_thin:$(tag)'
input:
    - 'https://registry.hub.docker.com/library/centos:*'
    - 'https://registry.hub.docker.com/centos:7'
    - "registry.example.org:5000/a/b"
    - http://registry.example.org/a/b:v1.*-x
    - registry.example.org/a@sha256:0123456789012345678901234567890123456789012345678901234567890123
`))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, l := range p.Lines {
		got += fmt.Sprintln(l.N, l.Source(l.Tag), l.isPattern(), l.PlainHTTP)
	}
	want := `6 docker://docker.io/library/centos:* true false
7 docker://docker.io/library/centos:7 false false
8 docker://registry.example.org:5000/a/b:latest false false
9 docker://registry.example.org/a/b:v1.*-x true true
10 docker://registry.example.org/a@sha256:0123456789012345678901234567890123456789012345678901234567890123 false false
`
	if got != want || len(p.Problems) != 0 {
		t.Errorf("lines\n%s, problems %v, want\n%s", got, p.Problems, want)
	}
	if len(p.Notes) != 1 || p.Notes[0] != "a hub has no use for user, cvmfs_repo, output_format" {
		t.Errorf("notes %q", p.Notes)
	}
}

// Each of ten thousand lines of which every tenth is wrong is either parsed, or named with its
// number and a reason.
func TestWrongLinesAreNamed(t *testing.T) {
	wrong := []string{"ftp://example.org/a:1", "a", "example.org/a*/b:1", "example.org/A:1", "example.org/a:[0-9]*",
		"[1, 2]", "{a: b}", "*anchor", "example.org/" + strings.Repeat("a", 2000), "example.org/a@sha256:12",
		"https://", "~"}
	var text strings.Builder
	text.WriteString("version: 1\nx: &anchor example.org/y:1\ninput:\n")
	for i := range 10_000 {
		if i%10 == 9 {
			text.WriteString("- " + wrong[i/10%len(wrong)] + "\n")
		} else {
			fmt.Fprintf(&text, "- example.org/a/b:%d\n", i)
		}
	}
	p, err := Parse([]byte(text.String()))
	if err != nil || len(p.Lines) != 9000 || len(p.Problems) != 1000 {
		t.Fatalf("%d lines and %d problems, %v, want 9,000 and 1,000", len(p.Lines), len(p.Problems), err)
	}
	for i, problem := range p.Problems {
		if problem.Line != int64(i*10+9+4) || problem.Why == "" || len(problem.Text) > 210 {
			t.Errorf("problem %+v, want line %d and a reason", problem, i*10+9+4)
		}
	}
}

// Files that are no wishlists are refused as a whole.
func TestNoWishlist(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "want a mapping",
		"- a":                       "want a mapping",
		"version: 2\ninput: []":     "line 1: version",
		"version: 1":                "no list named input",
		"input: a":                  "line 1: input has to be a list",
		"input: [":                  "yaml",
		strings.Repeat("[", 20_000): "yaml",
		"input:" + strings.Repeat("\n- a/b:1", maxLines+1): "50001 lines",
		strings.Repeat(" ", maxText+1):                     "longer than 8 MiB",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want an error with %q", text, err, want)
		}
	}
}

// A star matches any characters. Nothing else in a pattern is special.
func TestMatchTag(t *testing.T) {
	for _, test := range []struct {
		pattern, match, other string
	}{
		{"*", "v1 v2 latest", ""}, {"21.2.*", "21.2.1 21.2.", "2102x1 21.2"}, {"v*-x", "v1-x v-x", "v-y av-x"},
		{"a*b*c", "abc axbxc abbc", "acb ab"}, {"a*a", "aa aba", "a"}, {"v1", "v1", "v"},
	} {
		for _, tag := range strings.Fields(test.match) {
			if !matchTag(test.pattern, tag) {
				t.Errorf("%s does not match %s", test.pattern, tag)
			}
		}
		for _, tag := range strings.Fields(test.other) {
			if matchTag(test.pattern, tag) {
				t.Errorf("%s matches %s", test.pattern, tag)
			}
		}
	}
}
