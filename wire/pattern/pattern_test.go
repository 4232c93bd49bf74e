package pattern

import "testing"

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a/b", "a/b", true}, {"a/b", "a/b/c", false}, {"a/b", "a", false},
		{"a/*", "a/b", true}, {"a/*", "a/b/c", false}, {"a/*", "a", false},
		{"a/**", "a", true}, {"a/**", "a/b/c", true}, {"a/**", "ab/c", false},
		{"**", "a/b/c", true}, {"**/c", "a/b/c", true}, {"**/c", "c", true}, {"**/c", "a/b", false},
		{"localhost:5000/a*", "localhost:5000/ab", true}, {"v[0-9]", "v1", true}, {"v[", "v[", false},
	} {
		if got := Match(c.pattern, c.name); got != c.want {
			t.Errorf("pattern %s matches %s: %v, want %v", c.pattern, c.name, got, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	for pattern, valid := range map[string]bool{"": false, "a[": false, "a": true, "**": true, "a/**/b*": true} {
		if err := Check(pattern); (err == nil) != valid {
			t.Errorf("pattern %q: error %v, want it valid: %v", pattern, err, valid)
		}
	}
}
