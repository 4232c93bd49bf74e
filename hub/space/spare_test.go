package space

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// The spare file is made while there is room, given up in parts, and made again.
func TestSpare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spare")
	const reserve, whole = 128 << 10, 8 << 10
	d := new(disk)
	d.Store(1 << 30)
	open := func(bytes int64) *Spare {
		return OpenSpare(path, &Reserve{bytes, []Dir{{"root", "/"}}, func(Dir) (int64, error) { return d.Load(), nil }},
			slog.New(slog.DiscardHandler))
	}
	want := func(when string, bytes int64) {
		t.Helper()
		got := int64(0)
		if info, err := os.Stat(path); err == nil {
			got = info.Size()
		}
		if got != bytes {
			t.Errorf("%s, the file has %d bytes, want %d", when, got, bytes)
		}
	}
	fill := func(s *Spare) {
		t.Helper()
		if err := s.fill(); err != nil {
			t.Fatal(err)
		}
	}
	s := open(reserve)
	if s.GiveUp() {
		t.Error("a part of a file that does not exist was given up")
	}
	d.Store(reserve + whole - 1)
	fill(s)
	want("without room", 0)
	d.Store(1 << 30)
	fill(s)
	want("with room", whole)
	d.Store(0)
	s = open(reserve)
	want("at a start on a full disk", whole*7/8)
	for left := int64(6); left >= 0; left-- {
		if !s.GiveUp() {
			t.Error("a whole part of the file was not given up")
		}
		want("after a part", whole*left/8)
	}
	if s.GiveUp() {
		t.Error("a part of an empty file was given up")
	}
	fill(s)
	want("on the full disk", 0)
	d.Store(1 << 30)
	fill(s)
	want("with room again", whole)
	fill(open(reserve / 2))
	want("with a smaller reserve", whole/2)
	fill(open(0))
	want("without a reserve", 0)
}
