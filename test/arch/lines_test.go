package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxCode = 120 // columns of a line of code
	maxText = 100 // columns of a comment, and of a line of a document
)

// refused has the words that this repository gave up, by the field's terms that replaced them. The
// migrations of the catalog and the stored examples keep such words.
var refused = map[string]*regexp.Regexp{
	"in flight":                   regexp.MustCompile(`(?i)\bon (its|their) way\b`),
	"background, speculative":     regexp.MustCompile(`(?i)\bfor nobody who waits\b`),
	"reported, reporter":          regexp.MustCompile(`(?i)\btellers?\b`),
	"recompressed":                regexp.MustCompile(`(?i)\b(pressed|pressing|presser|squeez\w+)\b`),
	"pending recompression":       regexp.MustCompile(`(?i)\bloosen\w*\b`),
	"outlier":                     regexp.MustCompile(`(?i)\bdoubt\w*\b`),
	"repair":                      regexp.MustCompile(`(?i)\bmend(s|ed|ing)?\b`),
	"pool, yield":                 regexp.MustCompile(`(?i)\b(give|gives|gave|giving) way\b`),
	"cached, missing":             regexp.MustCompile(`(?i)\bis (not )?here\b`),
	"user-facing, administrative": regexp.MustCompile(`(?i)\b(for|to|hand to) people\b`),
}

// Lines fit a screen, and no line has a refused word. A tab has four columns. Raw strings, and
// tables and code in documents, may be wider: breaking them would change them.
func TestLines(t *testing.T) {
	sources(t, func(pkg, path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			return
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		raw := rawLines(files, file)
		for i, line := range strings.Split(string(text), "\n") {
			limit := maxCode
			if strings.HasPrefix(strings.TrimSpace(line), "//") {
				limit = maxText
			}
			checkLine(t, path, i+1, line, limit, raw[i+1])
		}
	})
	documents := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == "work" || e.Name() == "out" || e.Name() == ".git"):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		documents++
		text, err := os.ReadFile(path)
		isCode := false
		for i, line := range strings.Split(string(text), "\n") {
			isFence := strings.HasPrefix(line, "```")
			isCode = isCode != isFence
			wide := isCode || isFence || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ")
			checkLine(t, path, i+1, line, maxText, wide)
		}
		return err
	})
	if err != nil || documents < 10 {
		t.Fatalf("looked at %d documents, want at least 10: %v", documents, err)
	}
}

// rawLines returns the lines on which a raw string begins, goes on or ends.
func rawLines(files *token.FileSet, file *ast.File) map[int]bool {
	lines := map[int]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(s.Value, "`") {
			for line := files.Position(s.Pos()).Line; line <= files.Position(s.End()).Line; line++ {
				lines[line] = true
			}
		}
		return true
	})
	return lines
}

func checkLine(t *testing.T, path string, n int, line string, limit int, wide bool) {
	t.Helper()
	columns := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
	if columns > limit && !wide {
		t.Errorf("%s:%d: %d columns, want at most %d", path, n, columns, limit)
	}
	if strings.HasSuffix(path, "test/arch/lines_test.go") {
		return
	}
	for want, word := range refused {
		if found := word.FindString(line); found != "" {
			t.Errorf("%s:%d: %q was given up; write: %s", path, n, found, want)
		}
	}
}
