package soci

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
