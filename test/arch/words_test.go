package arch

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// refused are words that this repository gave up for the field's terms. The migrations of the
// catalog and stored examples keep theirs.
var refused = map[string]*regexp.Regexp{
	"in flight":                   regexp.MustCompile(`(?i)\bon (its|their) way\b`),
	"background, speculative":     regexp.MustCompile(`(?i)\bfor nobody who waits\b`),
	"reported, reporter":          regexp.MustCompile(`(?i)\btellers?\b`),
	"recompressed":                regexp.MustCompile(`(?i)\b(pressed|pressing|presser|squeez\w+)\b`),
	"pending recompression":       regexp.MustCompile(`(?i)\bloosen\w*\b`),
	"outlier":                     regexp.MustCompile(`(?i)\bdoubt\w*\b`),
	"repair":                      regexp.MustCompile(`(?i)\bmend(s|ed|ing)?\b`),
	"pool, yield":                 regexp.MustCompile(`(?i)\b(give|gave|giving) way\b`),
	"cached, missing":             regexp.MustCompile(`(?i)\bis (not )?here\b`),
	"user-facing, administrative": regexp.MustCompile(`(?i)\b(for|to|hand to) people\b`),
}

// No line of code or of a document has a refused word.
func TestRefusedWords(t *testing.T) {
	sources(t, func(pkg, path string) {
		if pkg != "test/arch" {
			checkWords(t, path)
		}
	})
	documents := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == "work" || e.Name() == ".git"):
			return filepath.SkipDir
		case filepath.Ext(path) == ".md":
			documents++
			checkWords(t, path)
		}
		return nil
	})
	if err != nil || documents < 10 {
		t.Fatalf("looked at %d documents, want at least 10: %v", documents, err)
	}
}

func checkWords(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	for want, word := range refused {
		if found := word.Find(text); found != nil {
			line := bytes.Count(text[:bytes.Index(text, found)], []byte("\n")) + 1
			t.Errorf("%s:%d: %q was given up; write: %s", path, line, found, want)
		}
	}
}
