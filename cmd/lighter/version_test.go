package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"lighter/buildinfo"
	"lighter/test/testkit/printed"
)

func TestVersion(t *testing.T) {
	var got version
	if err := json.Unmarshal([]byte(printedBy(t, "version", "--json")), &got); err != nil {
		t.Fatal(err)
	}
	if got.Info != buildinfo.Read() || got.Wire != 1 {
		t.Errorf("version --json printed %+v, want this program's build and wire 1", got)
	}
	names := slices.Sorted(maps.Keys(got.Formats))
	if want := slices.Sorted(slices.Values(formatNames)); !slices.Equal(names, want) {
		t.Errorf("version --json printed the formats %v, want %v", names, want)
	}
	for name, number := range got.Formats {
		if number < 1 {
			t.Errorf("the format of %s is %d, want at least 1", name, number)
		}
	}
	text := printedBy(t, "version")
	for _, want := range append([]string{got.Release, got.Go, "wire", "history"}, formatNames...) {
		if !strings.Contains(text, want) {
			t.Errorf("version printed no %q:\n%s", want, text)
		}
	}
}

func TestPrintVersion(t *testing.T) {
	v := version{Info: buildinfo.Info{Release: "v1.2.3+dirty", Commit: "0123abcd", Committed: "2026-11-29T06:00:00Z",
		Modified: true, Go: "go1.26.8", OS: "linux", Arch: "arm64"}, Wire: 1, Formats: map[string]int{"index": 7}}
	got, _ := printed.By(t, func() { printVersion(v) })
	const want = `release   v1.2.3+dirty
commit    0123abcd, of 2026-11-29T06:00:00Z, and the sources were modified
built     by go1.26.8, for linux/arm64
wire      1
formats   index 7, `
	if !strings.HasPrefix(got, want) {
		t.Errorf("printed\n%s\nwant it to begin with\n%s", got, want)
	}
}
