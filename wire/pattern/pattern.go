// Package pattern matches names of repositories with patterns. Slashes separate the parts of names
// and patterns. In a pattern, * matches any characters of a part, ? one character, and [a-z] one
// character of a range. A part ** matches any number of parts. The package is pure.
package pattern

import (
	"fmt"
	"path"
	"strings"
)

// Check returns an error if a pattern is invalid.
func Check(pattern string) error {
	if _, err := path.Match(strings.ReplaceAll(pattern, "**", "*"), ""); err != nil || pattern == "" {
		return fmt.Errorf("%q is no pattern: want NAME with * and **, such as ci/**", pattern)
	}
	return nil
}

// Match reports whether a name, [HOST[:PORT]/]REPOSITORY, matches a pattern. An invalid pattern
// matches nothing.
func Match(pattern, name string) bool {
	return matchParts(strings.Split(pattern, "/"), strings.Split(name, "/"))
}

// matchParts matches the parts of a name.
func matchParts(pattern, name []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			for i := range len(name) + 1 {
				if matchParts(pattern[1:], name[i:]) {
					return true
				}
			}
			return false
		}
		if len(name) == 0 {
			return false
		}
		if ok, err := path.Match(pattern[0], name[0]); err != nil || !ok {
			return false
		}
		pattern, name = pattern[1:], name[1:]
	}
	return len(name) == 0
}
