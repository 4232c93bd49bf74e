package erofs

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

// Find returns fs.ErrNotExist for a path that does not exist. roundTrip tests that Find and Walk
// agree about the other paths.
func TestFindNothing(t *testing.T) {
	m, _, _ := image(t, dirOf(
		name("d", dirOf(append(names4k(3*BlockSize), name("zz", file("z")))...)),
		name("file", file("f")), name("link", symlink("/d"))))
	f := m.Finder()
	for _, path := range []string{"/x", "/d/x", "/d/0", "/d/zzz", "/file/x", "/link/zz", "/d/../file", "/./file",
		"/fil", "/filet", "/\x00", "/d/."} {
		if in, err := f.Find(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: got %+v, error %v; want ErrNotExist", path, in, err)
		}
	}
	for _, path := range []string{"/", "", "/d", "/d/zz", "d/zz", "/link", "//d//zz", "/d/"} {
		if _, err := f.Find(path); err != nil {
			t.Errorf("%q: got %v, want no error", path, err)
		}
	}
}

// A Finder remembers directories, whether they exist or not, in bounded memory.
func TestFindRemembers(t *testing.T) {
	m, _, _ := image(t, dirOf(name("d", dirOf(name("zz", file("z"))))))
	f := m.Finder()
	for i := range 20_000 {
		missing := fmt.Sprintf("/d/%d/%s", i/2, strings.Repeat("x", 200))
		if in, err := f.Find(missing + "/zz"); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%q: got %+v, error %v; want ErrNotExist", missing, in, err)
		}
		if _, err := f.Find("/d/zz"); err != nil {
			t.Fatal(err)
		}
		if size := 0; i%1000 == 0 {
			for dir := range f.dirs {
				size += len(dir)
			}
			if size > maxDirs || size != f.kept {
				t.Fatalf("paths of %d bytes are remembered, and %d were counted: want at most %d", size, f.kept,
					maxDirs)
			}
		}
	}
}

func TestNames(t *testing.T) {
	many := names4k(3 * BlockSize)
	m, _, _ := image(t, dirOf(name("d", dirOf(many...)), name("file", file("f")), name("link", symlink("/d"))))
	f := m.Finder()
	for _, c := range []struct {
		path        string
		limit, want int
	}{{"/d", 10_000, len(many)}, {"/d", 30, 30}, {"/", 10, 3}, {"/file", 10, 0}, {"/link", 10, 0}} {
		names, err := f.Names(c.path, c.limit)
		if err != nil || len(names) != c.want {
			t.Errorf("%s: got %d names, error %v; want %d names", c.path, len(names), err, c.want)
		}
		for i, got := range names {
			if c.path == "/d" && got != many[i].Name {
				t.Errorf("name %d is %q, want %q", i, got, many[i].Name)
			}
		}
	}
	if _, err := f.Names("/x", 10); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
