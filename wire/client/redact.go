package client

import (
	"errors"
	"net/url"
	"strings"
)

// redacted returns a URL without user information, query and fragment, which may hold
// credentials. The text comes from a user and need not be a valid URL. If it is unclear where these
// parts are, redacted returns none of the text.
func redacted(raw string) string {
	if u, err := url.Parse(raw); err == nil && u.Host != "" {
		u.User, u.RawQuery, u.Fragment = nil, "", ""
		return u.String()
	}
	user, rest := strings.LastIndexByte(raw, '@'), strings.IndexAny(raw, "?#")
	switch {
	case rest >= 0 && user > rest: // the @ is in the query, or the ? in the password
		return "…"
	case rest >= 0:
		raw = raw[:rest]
	}
	if user >= 0 {
		raw = "…" + raw[user:]
	}
	return raw
}

// redactedCause returns the cause of an error of http.Client. The error itself repeats the URL.
// That may be the URL of a redirect, whose query may grant access to a store.
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
