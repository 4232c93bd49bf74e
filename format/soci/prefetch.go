package soci

import (
	"archive/tar"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"lighter/format/tree"
)

const (
	prefetchVersion = "1.0"
	// MaxPrefetch bounds the size of a list of what to prefetch, in bytes.
	MaxPrefetch = 4 << 20
)

// Spans is a run of spans of a layer, with both its ends.
type Spans struct {
	First    int `json:"start_span"`
	Last     int `json:"end_span"`
	Priority int `json:"priority,omitempty"` // the lowest comes first
}

type prefetchText struct {
	Version string  `json:"version"`
	Spans   []Spans `json:"prefetch_spans"`
}

// DecodePrefetch decodes the list of spans that a node should fetch before they are read. The zTOC
// of the layer has so many spans.
func DecodePrefetch(data []byte, spans int) ([]Spans, error) {
	list, err := decodePrefetch(data, spans)
	if err != nil {
		return nil, fmt.Errorf("decode a list of spans to prefetch: %w", err)
	}
	return list, nil
}

func decodePrefetch(data []byte, spans int) ([]Spans, error) {
	if len(data) > MaxPrefetch {
		return nil, fmt.Errorf("%d bytes, the limit is %d", len(data), MaxPrefetch)
	}
	var text prefetchText
	if err := json.Unmarshal(data, &text); err != nil {
		return nil, err
	}
	if text.Version != prefetchVersion {
		return nil, fmt.Errorf("version %q, want %q", shorten(text.Version), prefetchVersion)
	}
	if len(text.Spans) == 0 {
		return nil, errors.New("it is empty")
	}
	for _, s := range text.Spans {
		if s.First < 0 || s.Last < s.First || s.Last >= spans {
			return nil, fmt.Errorf("spans %d to %d of %d", s.First, s.Last, spans)
		}
	}
	return text.Spans, nil
}

// Part is a part of a file's contents.
type Part struct {
	Path           string // in the image
	Offset, Length int64  // in bytes; it may exceed the file. Length 0: to the end of the file
}

// extent is where a file's contents are in the plain layer, in bytes.
type extent struct{ offset, size int64 }

// contents returns where the contents of each regular file are that is not empty, by its path in
// the layer, relative to the root. A hard link has those of the file that it names.
func (t *Table) contents() (map[string]extent, error) {
	all := map[string]extent{}
	source := t.Layer(func(e *tree.Entry, offset int64) error {
		all[cleanPath(e.Name)] = extent{offset, e.Size}
		return nil
	})
	for {
		e, err := source.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		name := cleanPath(e.Name)
		if target, found := all[cleanPath(e.Linkname)]; found && e.Type == tar.TypeLink {
			all[name] = target
		} else if e.Size == 0 {
			delete(all, name) // it replaces what had this name
		}
	}
}

// PrefetchOf returns, for each layer, the spans that have parts of files, in the order of the
// parts. layers are the zTOCs of an image, the lowest first. A file is that of the topmost of them
// that has a file of this path, as in SOCI's programs. Other paths are ignored, and so are parts
// behind the end of their file.
func PrefetchOf(layers []*Table, parts []Part) ([][]Spans, error) {
	contents := make([]map[string]extent, len(layers))
	for i, t := range layers {
		var err error
		if contents[i], err = t.contents(); err != nil {
			return nil, err
		}
	}
	lists := make([][]Spans, len(layers))
	for _, p := range parts {
		for i, files := range slices.Backward(contents) {
			file, found := files[cleanPath(p.Path)]
			if !found {
				continue
			}
			if s, some := layers[i].spansOf(file, p); some {
				lists[i] = append(lists[i], s)
			}
			break
		}
	}
	return lists, nil
}

// spansOf returns the spans that have a part of a file, or false if the file does not have it.
func (t *Table) spansOf(file extent, p Part) (s Spans, some bool) {
	if p.Offset < 0 || p.Offset >= file.size || p.Length < 0 {
		return s, false
	}
	length := file.size - p.Offset
	if p.Length > 0 {
		length = min(length, p.Length)
	}
	begin := file.offset + p.Offset
	return Spans{First: t.SpanAt(begin), Last: t.SpanAt(begin + length - 1)}, true
}

func cleanPath(p string) string { return path.Clean("/" + p)[1:] }

// EncodePrefetch returns the list as SOCI's programs write it. They merge runs, sorted by the first
// span, that overlap or are neighbours. So does EncodePrefetch, if their priorities are equal. The
// list must not be empty.
func EncodePrefetch(list []Spans) []byte {
	sorted := slices.SortedFunc(slices.Values(list), func(a, b Spans) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	merged := sorted[:0]
	for _, s := range sorted {
		if n := len(merged); n > 0 && merged[n-1].Priority == s.Priority && s.First <= merged[n-1].Last+1 {
			merged[n-1].Last = max(merged[n-1].Last, s.Last)
			continue
		}
		merged = append(merged, s)
	}
	text, err := json.Marshal(prefetchText{prefetchVersion, merged})
	if err != nil {
		panic(err) // it has only strings and numbers
	}
	return text
}
