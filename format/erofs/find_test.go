package erofs

import (
	"errors"
	"io/fs"
	"testing"
)

// That Find says of every path what Walk says is what roundTrip looks at.
func TestFindNothing(t *testing.T) {
	m, _, _ := image(t, dirOf(
		name("d", dirOf(append(names4k(3*BlockSize), name("zz", file("z")))...)),
		name("file", file("f")), name("link", symlink("/d"))))
	f := m.Finder()
	for _, path := range []string{"/x", "/d/x", "/d/0", "/d/zzz", "/file/x", "/link/zz", "/d/../file", "/./file", "/fil", "/filet", "/\x00", "/d/."} {
		if in, err := f.Find(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %+v, error %v", path, in, err)
		}
	}
	for _, path := range []string{"/", "", "/d", "/d/zz", "d/zz", "/link"} {
		if _, err := f.Find(path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
}
