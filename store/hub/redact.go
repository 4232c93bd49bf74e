package hub

import (
	"errors"
	"net/url"
	"strings"
)

// redacted returns what may be shown of a URL as somebody wrote it, which may not
// be one: nothing of what stands before the host, where a password may be, and no
// query.
func redacted(raw string) string {
	if u, err := url.Parse(raw); err == nil && u.Host != "" {
		u.User, u.RawQuery, u.Fragment = nil, "", ""
		return u.String()
	}
	if i := strings.LastIndexByte(raw, '@'); i >= 0 {
		raw = "…" + raw[i:]
	}
	raw, _, _ = strings.Cut(raw, "?")
	return raw
}

// causeOf returns what may be shown of an error of Go's HTTP client. It repeats
// method and URL, also of where a hub redirects to, and there is what grants
// access to a store.
func causeOf(err error) error {
	var about *url.Error
	for errors.As(err, &about) {
		err = about.Err
	}
	if strings.Contains(err.Error(), "Location header") {
		return errors.New("it redirects to what is no URL")
	}
	return err
}
