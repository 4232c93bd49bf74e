// Package golden compares the output of a test with a file in the testdata directory of the test's
// package. If the environment variable UPDATE_GOLDEN is set, it writes that file first.
package golden

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Compare fails the test unless the file testdata/name has the content got. The failure shows the
// first line that differs.
func Compare(t testing.TB, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range min(len(gotLines), len(wantLines)) {
		if gotLines[i] != wantLines[i] {
			t.Errorf("%s, line %d: got\n%s\nwant\n%s", path, i+1, gotLines[i], wantLines[i])
			return
		}
	}
	t.Errorf("%s: got %d bytes, want %d; the lines that both have are equal", path, len(got), len(want))
}
