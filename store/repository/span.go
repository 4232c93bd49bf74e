package repository

import (
	"fmt"
	"net/http"
)

// span is a range of a blob, in bytes.
type span struct{ offset, length, size int64 }

// String returns the range as HTTP writes it.
func (s span) String() string { return fmt.Sprintf("bytes %d-%d", s.offset, s.offset+s.length-1) }

func (s span) header() http.Header {
	return http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", s.offset, s.offset+s.length-1)}}
}

// check returns an error unless an answer has exactly the range, of a blob of that size. A server
// that ignores ranges may answer with the whole blob if that was asked for.
func (s span) check(a *answer) error {
	isWhole := s.offset == 0 && s.length == s.size
	switch {
	case a.StatusCode == http.StatusOK && isWhole:
		return nil
	case a.StatusCode == http.StatusOK:
		return fmt.Errorf("%s: 200 instead of 206 for %s: %w", a, s, ErrNoRanges)
	case a.StatusCode != http.StatusPartialContent:
		return a.mustBe(http.StatusPartialContent)
	}
	if got, want := a.Header.Get("Content-Range"), fmt.Sprintf("%s/%d", s, s.size); got != want {
		return a.invalid(fmt.Errorf("it has Content-Range %q, want %q", got, want))
	}
	return nil
}
