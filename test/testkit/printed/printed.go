// Package printed captures what a function writes to standard output and standard error. It
// replaces both for the whole process, so tests that use it must not be parallel.
package printed

import (
	"io"
	"os"
	"testing"
)

// By runs fn and returns what was printed meanwhile.
func By(t testing.TB, fn func()) (stdout, stderr string) {
	t.Helper()
	outs := [2]*os.File{os.Stdout, os.Stderr}
	var texts [2]chan string
	var ends [2]*os.File
	for i := range outs {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = w
		texts[i] = make(chan string, 1)
		go func() {
			b, _ := io.ReadAll(r)
			texts[i] <- string(b)
		}()
	}
	os.Stdout, os.Stderr = ends[0], ends[1]
	fn()
	os.Stdout, os.Stderr = outs[0], outs[1]
	for _, w := range ends {
		w.Close()
	}
	return <-texts[0], <-texts[1]
}
