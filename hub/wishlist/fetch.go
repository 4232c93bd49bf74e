package wishlist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"
)

// page is the last contents of a URL.
type page struct {
	ETag     string `json:"etag,omitempty"`
	Modified string `json:"modified,omitempty"`
	Text     []byte `json:"text"`
}

// pages are the last contents of a list's URLs.
type pages map[string]page

func parsePages(cache []byte) (p pages) {
	if json.Unmarshal(cache, &p) != nil { // it is only a cache
		return nil
	}
	return p
}

// readFile reads a file of the hub's machine.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBounded(f)
}

func readBounded(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxText+1))
	if err == nil && len(b) > maxText {
		err = errTooLong
	}
	return b, err
}

const maxRedirects = 5

// fetch fetches a URL with a client, unless it has not changed since before.
func fetch(ctx context.Context, with *http.Client, from string, before page) (page, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	client := *with
	client.CheckRedirect = func(_ *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return errors.New("too many redirects")
		}
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return page{}, err
	}
	if before.ETag != "" {
		req.Header.Set("If-None-Match", before.ETag)
	} else if before.Modified != "" {
		req.Header.Set("If-Modified-Since", before.Modified)
	}
	res, err := client.Do(req)
	if err != nil {
		return page{}, withoutURL(err)
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusNotModified:
		return before, nil
	case http.StatusOK:
	default:
		return page{}, fmt.Errorf("it answers %s", res.Status)
	}
	text, err := readBounded(res.Body)
	if err != nil {
		return page{}, err
	}
	h := res.Header
	return page{ETag: validator(h.Get("ETag")), Modified: validator(h.Get("Last-Modified")), Text: text}, nil
}

// validator returns a header that is sent back with the next request, if it is short.
func validator(header string) string {
	if len(header) > maxLine {
		return ""
	}
	return header
}

// withoutURL returns an error of a request without its URL: queries may hold secrets.
func withoutURL(err error) error {
	if failed := (*url.Error)(nil); errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// shown returns a URL as results show it: without its query.
func shown(from string) string {
	u, err := url.Parse(from)
	if err != nil {
		return "a URL"
	}
	u.RawQuery, u.Fragment = "", ""
	return u.Redacted()
}

// now is the time of a result, in seconds.
func now() time.Time { return time.Now().UTC().Truncate(time.Second) }
