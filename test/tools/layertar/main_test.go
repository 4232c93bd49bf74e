//go:build e2e

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// TestWriteLayer changes an overlay with ordinary commands, and checks the entries of its layer.
func TestWriteLayer(t *testing.T) {
	dir := t.TempDir()
	lower, upper := filepath.Join(dir, "lower"), filepath.Join(dir, "upper")
	shell(t, dir, `mkdir -p lower/kept lower/gone lower/emptied/sub lower/filled lower/todir.d upper work root
		echo 1 >lower/kept/same; echo 1 >lower/kept/changed; echo 1 >lower/todir; echo 1 >lower/filled/old
		ln -s nowhere lower/dangling`)
	shell(t, dir, `mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work \
		-o redirect_dir=off,index=off,metacopy=off overlay root`)
	defer shell(t, dir, "umount root")
	shell(t, filepath.Join(dir, "root"), `echo 2 >kept/changed; rm -r gone dangling
		rm todir; mkdir todir; mkdir -p new/deep
		rm -r filled; mkdir filled; echo 2 >filled/young
		ln kept/changed new/linked; mknod new/null c 1 3; ln -s x new/symlink`)

	var layer bytes.Buffer
	if err := writeLayer(&layer, []string{lower}, upper); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"0 .wh.dangling",
		"5 filled/", "0 filled/.wh..wh..opq", "0 filled/young",
		"0 .wh.gone",
		"5 kept/", "0 kept/changed",
		"5 new/", "5 new/deep/", "1 new/linked -> kept/changed", "3 new/null", "2 new/symlink -> x",
		"5 todir/",
	}
	if got := names(t, &layer); !slices.Equal(got, want) {
		t.Errorf("the layer has\n%q\nwant\n%q", got, want)
	}
}

// shell runs a shell script in a directory. The script must succeed.
func shell(t *testing.T, dir, script string) {
	t.Helper()
	command := exec.Command("sh", "-euc", script)
	command.Dir = dir
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, output)
	}
}

// names returns the entries of a layer, each as its type flag, its name, and the target of a link.
func names(t *testing.T, layer io.Reader) []string {
	t.Helper()
	var all []string
	reader := tar.NewReader(layer)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf("%c %s", header.Typeflag, header.Name)
		if header.Linkname != "" {
			line += " -> " + header.Linkname
		}
		all = append(all, line)
	}
}
