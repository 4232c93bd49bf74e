// Package arch holds the rules that the structure must keep: who may import
// whom, who may import what of others, and that every package says what it
// promises. It reads the sources and builds nothing.
package arch

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the repository's root, seen from this package.
const root = "../.."

// allowed says which of our own packages each may import, besides those that
// its own folder holds. A folder stands for all below it.
var allowed = map[string][]string{
	"format/chunk":   {},
	"format/pack":    {"format/chunk"},
	"format/tree":    {"format/chunk"},
	"format/erofs":   {"format/chunk", "format/tree"},
	"format/index":   {"format/chunk", "format/tree", "format/erofs"},
	"format/trace":   {"format/chunk", "format/tree", "format/erofs", "format/index"},
	"logqueue":       {},
	"renewed":        {},
	"store":          {"format"},
	"store/disk":     {"format"},
	"store/hub":      {"format", "renewed"},
	"store/registry": {"format"},
	"node":           {"format", "logqueue", "store"},
	"hub":            {"format", "logqueue", "renewed", "store/hub", "store/registry"},
	"hub/startup":    {"format"},
	"cmd":            {"format", "logqueue", "store", "node", "hub", "bench"},
	"bench":          {"format", "store", "node", "hub", "test"},
	"test":           {"format", "store", "node", "hub", "test", "bench"},
}

// confined names packages of others that only one place may import, with the
// reason: what changes there changes us in one place.
var confined = []struct {
	path, only, why string
}{
	{"github.com/containerd/containerd/v2/contrib/seccomp", "cmd", "it has no types of containerd, and is for trials"},
	{"github.com/containerd/containerd", "node/snapshot", "containerd's types stop at the snapshotter"},
	{"database/sql", "hub/catalog", "SQL is the catalog's"},
	{"modernc.org/sqlite", "hub/catalog", "SQL is the catalog's"},
	{"github.com/hanwen/go-fuse", "node/device", "the FUSE protocol stops at the device"},
	{"github.com/google/go-containerregistry", "store/registry hub", "registry libraries belong to the client and the hub's OCI side"},
	{"github.com/distribution/distribution", "hub", "the hub's OCI side"},
	{"gocloud.dev", "hub", "object storage is the hub's"},
	{"github.com/spf13/cobra", "cmd", "flags are the command's"},
	{"github.com/prometheus", "node hub", "metrics are made where the figures are put together"},
}

// sources calls fn for each Go file, with its package's path from the root.
func sources(t *testing.T, fn func(pkg, file string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			base := entry.Name()
			_, isModule := os.Stat(filepath.Join(path, "go.mod"))
			if rel != "." && (strings.HasPrefix(base, ".") || base == "work" || base == "out" || base == "testdata" || isModule == nil) {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(rel, ".go") {
			fn(filepath.ToSlash(filepath.Dir(rel)), path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// within tells whether pkg is place or lies below it.
func within(pkg, place string) bool { return pkg == place || strings.HasPrefix(pkg, place+"/") }

// rule returns the entry of allowed that is closest to pkg.
func rule(pkg string) (string, bool) {
	for place := pkg; place != "." && place != ""; place = filepath.ToSlash(filepath.Dir(place)) {
		if _, ok := allowed[place]; ok {
			return place, true
		}
	}
	return "", false
}

func TestImportsPointDown(t *testing.T) {
	seen := 0
	sources(t, func(pkg, path string) {
		isTest := strings.HasSuffix(path, "_test.go")
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Error(err)
			return
		}
		for _, spec := range file.Imports {
			seen++
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Error(err)
				continue
			}
			if own, ok := strings.CutPrefix(imported, "lighter/"); ok {
				checkOwn(t, pkg, own, path, isTest)
			} else if !isTest && !within(pkg, "test") {
				checkConfined(t, pkg, imported, path)
			}
		}
	})
	if seen < 100 {
		t.Fatalf("only %d imports were seen: this test looks in the wrong place", seen)
	}
}

func checkOwn(t *testing.T, pkg, own, path string, isTest bool) {
	t.Helper()
	if isTest && within(own, "test/testkit") {
		return
	}
	place, ok := rule(pkg)
	if !ok {
		t.Errorf("%s: package %s has no rule in the import table", path, pkg)
		return
	}
	if within(own, place) && strings.Count(place, "/") == 0 && place != "store" {
		return // a room's own packages
	}
	if !slices.ContainsFunc(allowed[place], func(to string) bool { return within(own, to) }) {
		t.Errorf("%s: %s must not import %s", path, pkg, own)
	}
}

func checkConfined(t *testing.T, pkg, imported, path string) {
	t.Helper()
	for _, c := range confined {
		if !within(imported, c.path) {
			continue
		}
		if !slices.ContainsFunc(strings.Fields(c.only), func(place string) bool { return within(pkg, place) }) {
			t.Errorf("%s: %s must not import %s: %s", path, pkg, imported, c.why)
		}
		return // the first says all
	}
}

func TestEveryPackageSaysWhatItPromises(t *testing.T) {
	docs := map[string]bool{}
	sources(t, func(pkg, path string) {
		if strings.HasSuffix(path, "_test.go") && pkg != "test/arch" && pkg != "test/e2e" {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Error(err)
			return
		}
		docs[pkg] = docs[pkg] || file.Doc != nil && len(file.Doc.Text()) > 80
	})
	for pkg, ok := range docs {
		if !ok {
			t.Errorf("package %s has no doc that says what it promises", pkg)
		}
	}
	if len(docs) < 10 {
		t.Fatalf("only %d packages were seen", len(docs))
	}
}
