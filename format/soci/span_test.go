package soci

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"lighter/format/tree"
)

// A span that has more or fewer plain bytes than the zTOC says.
func TestSpansWithOtherLengths(t *testing.T) {
	layer, _ := examples[1].read(t)
	for name, declared := range map[string]int64{"1000 bytes": 1000, "a byte less": -1, "a byte more": 1} {
		m := gzipMaker(t)
		if declared < 1000 {
			declared += int64(binary.LittleEndian.Uint64(m.zinfo[zinfoHeader+checkpointSize+8:]))
		}
		m.put(1, 8, declared)
		ztoc, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		table, err := Decode(ztoc, tree.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		s := table.Span(0)
		r, err := s.Open(layer[s.Compressed.Start:s.Compressed.End])
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, r); err == nil || n > declared {
			t.Errorf("%s: got %d bytes (%v), want at most %d and an error", name, n, err, declared)
		}
	}
}

// An archive that is longer than the zTOC's plain layer.
func TestLastSpanWithAnotherLength(t *testing.T) {
	layer, _ := examples[1].read(t)
	m := gzipMaker(t)
	m.plainSize++
	ztoc, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	table, err := Decode(ztoc, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	s := table.Span(table.Spans() - 1)
	r, err := s.Open(layer[s.Compressed.Start:s.Compressed.End])
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r); !errors.Is(err, io.ErrUnexpectedEOF) || n != s.Plain.Len()-1 {
		t.Errorf("got %d bytes (%v), want %d and ErrUnexpectedEOF", n, err, s.Plain.Len()-1)
	}
}

func TestOpenVerifies(t *testing.T) {
	layer, ztoc := examples[1].read(t)
	table, err := Decode(ztoc, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	s := table.Span(1)
	part := bytes.Clone(layer[s.Compressed.Start:s.Compressed.End])
	if _, err := s.Open(part[1:]); err == nil || !strings.Contains(err.Error(), "bytes, want") {
		t.Errorf("a byte too few: got %v, want an error about the length", err)
	}
	part[100] ^= 1
	if _, err := s.Open(part); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("a wrong byte: got %v, want an error about the digest", err)
	}
}

// An archive may be padded so much that a checkpoint comes after its end.
func TestPaddedArchives(t *testing.T) {
	plain := append(sampleTar(), make([]byte, 5<<20)...)
	layer := member(t, plain)
	ztoc, err := Make(bytes.NewReader(layer), Options{Gzip, 1 << 20, goldenTool, tree.Limits{}, nil})
	if err != nil {
		t.Fatal(err)
	}
	table, err := Decode(ztoc, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	last := table.Span(table.Spans() - 1)
	if table.PlainSize != int64(len(sampleTar())) || last.Plain.Start < table.PlainSize {
		t.Fatalf("archive of %d bytes, last span at %d: this test shows too little", table.PlainSize, last.Plain.Start)
	}
	r, err := last.Open(layer[last.Compressed.Start:last.Compressed.End])
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r); err != nil || n != 0 {
		t.Errorf("the last span: got %d bytes (%v), want none", n, err)
	}
}
