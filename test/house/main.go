// Command house prints figures of the code of this repository: the size of its packages, types,
// interfaces and functions, the width of its lines and the length of its sentences. Beside them it
// prints the figures of other projects, as models. It judges nothing, and no test depends on it.
//
// "Product" is everything but bench, test and *_test.go files. A line of code is a line that is
// neither blank nor a comment. Lines of a function are counted from "func" to its last brace.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// named is a figure, with the name of the thing that was counted.
type named struct {
	name string
	n    int
}

// house is all counts.
type house struct {
	packages map[string]int // lines of code by package
	comments int            // lines of comments in the product
	tests    int            // lines of code in *_test.go files
	methods  map[string]int // by type
	fields   []named        // number of fields of each struct
	narrow   []named        // number of methods of each interface
	funcs    []named        // number of lines of each function
	wide     map[string]int // lines that are too wide, by kind
	words    []int          // number of words of each sentence in the documents
}

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	h := house{packages: map[string]int{}, methods: map[string]int{}, wide: map[string]int{}}
	if err := h.walk(root); err != nil {
		fmt.Fprintln(os.Stderr, "house:", err)
		os.Exit(1)
	}
	h.print()
}

// walk counts all files below root. It skips other modules, test data, and directories that are not
// in the repository.
func (h *house) walk(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			_, isModule := os.Stat(filepath.Join(path, "go.mod"))
			if rel != "." && (strings.HasPrefix(entry.Name(), ".") ||
				slices.Contains([]string{"work", "out", "bin", "testdata"}, entry.Name()) || isModule == nil) {
				return filepath.SkipDir
			}
			return nil
		}
		b, err := os.ReadFile(path)
		switch filepath.Ext(path) {
		case ".md":
			h.document(string(b))
		case ".go":
			if err == nil {
				err = h.source(filepath.ToSlash(rel), b)
			}
		}
		return err
	})
}

// source counts a file of Go.
func (h *house) source(path string, b []byte) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, b, parser.ParseComments)
	if err != nil {
		return err
	}
	commented := map[int]bool{} // lines that are nothing but a comment
	tagged := tagLines(files, file)
	lines := bytes.Split(b, []byte("\n"))
	for _, group := range file.Comments {
		for _, c := range group.List {
			for line := files.Position(c.Pos()).Line; line <= files.Position(c.End()).Line; line++ {
				text := bytes.TrimSpace(lines[line-1])
				commented[line] = bytes.HasPrefix(text, []byte("/*")) || bytes.HasPrefix(text, []byte("//"))
			}
		}
	}
	code, comments := 0, 0
	for i, line := range lines {
		width := utf8.RuneCount(bytes.ReplaceAll(line, []byte("\t"), []byte("    ")))
		switch {
		case len(bytes.TrimSpace(line)) == 0:
		case commented[i+1]:
			comments++
			h.count("comments beyond 100 columns", width > 100)
		default:
			code++
			h.count("lines of code beyond 120 columns, without struct tags", width > 120 && !tagged[i+1])
		}
	}
	if strings.HasSuffix(path, "_test.go") {
		h.tests += code
		return nil
	}
	if strings.HasPrefix(path, "test/") || strings.HasPrefix(path, "bench/") ||
		strings.HasPrefix(path, "cmd/lighter-bench/") {
		return nil
	}
	pkg := filepath.Dir(path)
	h.packages[pkg] += code
	h.comments += comments
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			from, to := files.Position(n.Pos()).Line, files.Position(n.End()).Line
			h.funcs = append(h.funcs, named{pkg + "." + n.Name.Name, to - from + 1})
			if n.Recv != nil {
				h.methods[pkg+"."+receiver(n.Recv.List[0].Type)]++
			}
		case *ast.TypeSpec:
			switch t := n.Type.(type) {
			case *ast.StructType:
				h.fields = append(h.fields, named{pkg + "." + n.Name.Name, t.Fields.NumFields()})
			case *ast.InterfaceType:
				h.narrow = append(h.narrow, named{pkg + "." + n.Name.Name, t.Methods.NumFields()})
			}
		}
		return true
	})
	return nil
}

// tagLines returns the lines that have the tag of a field. A tag cannot be moved to another line.
func tagLines(files *token.FileSet, file *ast.File) map[int]bool {
	lines := map[int]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if f, ok := n.(*ast.Field); ok && f.Tag != nil {
			lines[files.Position(f.Tag.Pos()).Line] = true
		}
		return true
	})
	return lines
}

func (h *house) count(what string, is bool) {
	if is {
		h.wide[what]++
	}
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

var (
	sentenceEnd = regexp.MustCompile(`[.:;!?](\s|$)`)
	notProse    = regexp.MustCompile("(?ms)^```.*?^```|^    .*?$|^\\|.*?$|^#.*?$")
)

// document counts the words of a document's sentences. Tables, headings and code are no sentences.
func (h *house) document(text string) {
	for line := range strings.Lines(text) {
		h.count("lines of documents beyond 100 columns, without tables",
			utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 100 && !strings.HasPrefix(line, "|"))
	}
	for paragraph := range strings.SplitSeq(notProse.ReplaceAllString(text, "\n\n"), "\n\n") {
		for _, sentence := range sentenceEnd.Split(paragraph, -1) {
			if n := len(strings.Fields(sentence)); n > 2 {
				h.words = append(h.words, n)
			}
		}
	}
}

// print prints the figures, and beside them the figures of other projects. Those were counted in
// the same way in 2026, for a review of this repository; "-" means "not counted".
func (h *house) print() {
	total, packages := 0, sorted(h.packages)
	for _, p := range packages {
		total += p.n
	}
	methods := sorted(h.methods)
	slices.SortFunc(h.fields, byN)
	slices.SortFunc(h.narrow, byN)
	slices.SortFunc(h.funcs, byN)
	slices.Sort(h.words)
	words := 0
	for _, n := range h.words {
		words += n
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	row := func(what string, own any, others ...string) {
		fmt.Fprintf(out, "%s\t%v\t%s\n", what, own, strings.Join(others, "\t"))
	}
	row("", "lighter", "bbolt", "go-fuse", "go-containerregistry", "restic")
	row("lines of code (product)", total, "11,400", "22,600", "24,100", "48,800")
	row("packages", len(packages), "11", "30", "56", "60")
	row("lines of code per package", total/len(packages), "1,040", "750", "430", "810")
	row("lines of a function, median", at(h.funcs, 50), "9", "6", "9", "10")
	row("lines of a function, 95th percentile", at(h.funcs, 95), "46", "38", "61", "60")
	row("lines of the longest function", at(h.funcs, 100), "150", "230", "368", "222")
	row("methods of an interface, median", at(h.narrow, 50), "-", "1", "-", "-")
	row("methods of the largest type", methods[0].n, "-", "-", "-", "19")
	row("comment lines per line of code", fmt.Sprintf("%.2f", float64(h.comments)/float64(total)), "0.15", "0.14",
		"0.12", "0.09")
	row("test code per line of code", fmt.Sprintf("%.2f", float64(h.tests)/float64(total)), "1.21", "0.58",
		"0.96", "0.52")
	row("words of a sentence in documents, mean", fmt.Sprintf("%.1f", float64(words)/float64(max(1, len(h.words)))),
		"-", "-", "-", "-")
	for _, w := range sorted(h.wide) {
		row(w.name, w.n)
	}
	out.Flush()
	top("Packages, lines of code", packages)
	top("Types, methods", methods)
	slices.Reverse(h.fields)
	top("Structs, fields", h.fields)
	slices.Reverse(h.narrow)
	top("Interfaces, methods", h.narrow)
	slices.Reverse(h.funcs)
	top("Functions, lines", h.funcs)
}

func byN(a, b named) int { return cmp.Compare(a.n, b.n) }

// sorted returns the figures, the largest first.
func sorted(m map[string]int) (all []named) {
	for name, n := range m {
		all = append(all, named{name, n})
	}
	slices.SortFunc(all, func(a, b named) int { return cmp.Or(cmp.Compare(b.n, a.n), strings.Compare(a.name, b.name)) })
	return all
}

// at returns a percentile of sorted figures.
func at(all []named, percent int) int { return all[(len(all)-1)*percent/100].n }

// top prints the first of a list.
func top(title string, all []named) {
	const shown = 8
	fmt.Printf("\n%s\n", title)
	for _, x := range all[:min(len(all), shown)] {
		fmt.Printf("%8d  %s\n", x.n, x.name)
	}
}
