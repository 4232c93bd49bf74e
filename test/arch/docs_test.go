package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The files that the documents name exist.
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

// The documents name tests as evidence for what they promise. Each of these tests exists.
func TestTestsInDocumentsExist(t *testing.T) {
	defined, name := map[string]bool{}, regexp.MustCompile(`\bTest[A-Z]\w+`)
	definition := regexp.MustCompile(`(?m)^func (Test[A-Z]\w+)\(`)
	named := map[string]string{} // the document, by test
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == "work" || e.Name() == ".git"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		if strings.HasSuffix(path, ".md") {
			for _, test := range name.FindAllString(string(text), -1) {
				named[test] = path
			}
		}
		for _, match := range definition.FindAllSubmatch(text, -1) {
			defined[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for test, document := range named {
		if !defined[test] {
			t.Errorf("%s names %s, which does not exist", document, test)
		}
	}
	if len(named) < 50 {
		t.Errorf("the documents name %d tests, want at least 50: is the search wrong?", len(named))
	}
}
