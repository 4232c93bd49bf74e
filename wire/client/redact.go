package client

import (
	"errors"
	"net/url"
	"strings"
)

// redacted returns a URL without user information, query and fragment, which may hold
// credentials. The text comes from a user and need not be a valid URL.
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

// redactedCause returns the cause of an error of http.Client. The error itself repeats the
// URL, also that of a redirect, whose query may grant access to a store.
func redactedCause(err error) error {
	var wrapped *url.Error
	for errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	if strings.Contains(err.Error(), "Location header") {
		return errors.New("redirect to an invalid URL")
	}
	return err
}
