package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// What the documents send people to is there.
func TestNamedFilesExist(t *testing.T) {
	named := regexp.MustCompile(`\b(?:cmd|format|store|node|hub|test|bench|deploy|docs)/[\w./-]*[\w]`)
	for _, document := range []string{"ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Fatal(err)
		}
		names := named.FindAll(text, -1)
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(root, string(name))); err != nil {
				t.Errorf("%s: %v", document, err)
			}
		}
		if len(names) == 0 {
			t.Errorf("%s names no file", document)
		}
	}
}
