package repository

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"lighter/format/chunk"
	"lighter/store"
)

// maxRedirects bounds the redirects of one request.
const maxRedirects = 5

// answer is a server's answer, after all redirects.
type answer struct {
	*http.Response
	method   string
	url      *url.URL // that answered
	isTarget bool     // a redirect led there, now or before
	trip     *store.Trip
}

// send sends a request, follows redirects, and returns the answer, whatever its status. The caller
// closes its body. The session adds credentials to requests to the registry only.
func (r *Repository) send(ctx context.Context, method string, to *url.URL, header http.Header) (*answer, error) {
	return r.follow(ctx, method, to, header, false)
}

// follow is send for a URL that may be a target: a redirect led there before.
func (r *Repository) follow(ctx context.Context, method string, to *url.URL, header http.Header,
	isTarget bool) (*answer, error) {
	for range maxRedirects + 1 {
		ctx, trip := store.Timed(ctx)
		req := (&http.Request{Method: method, URL: to, Host: to.Host, Header: header.Clone()}).WithContext(ctx)
		res, err := r.session.RoundTrip(req)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, shown(to), refine(cause(ctx, err)))
		}
		if res.Request != nil && res.Request.URL.Host == to.Host {
			to = res.Request.URL // with the scheme that was used
		}
		if !isTarget {
			r.measured(trip.Duration())
		}
		a := &answer{res, method, to, isTarget, trip}
		if !isRedirect(res.StatusCode) {
			if err := a.refuseEncoding(); err != nil {
				return nil, err
			}
			return a, nil
		}
		_ = res.Body.Close() // not read
		if to, err = target(to, res.Header.Get("Location")); err != nil {
			return nil, fmt.Errorf("%w: %w", a.statusError(), err)
		}
		isTarget = true
	}
	return nil, fmt.Errorf("%s %s: more than %d redirects", method, shown(to), maxRedirects)
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
		return true
	}
	return false
}

// target returns where a Location leads to. Errors do not quote it: it may hold a signature.
func target(from *url.URL, location string) (*url.URL, error) {
	to, err := from.Parse(location)
	if err != nil || location == "" || to.Host == "" || to.Scheme != "http" && to.Scheme != "https" {
		return nil, errors.New("its header Location is no URL of HTTP")
	}
	to.User, to.Fragment, to.RawFragment = nil, "", ""
	return to, nil
}

// shown returns a URL for errors: without its query, which may hold a signature.
func shown(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// cause returns why a context ended, or the error if it did not.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil {
		return why
	}
	return err
}

// String names the request, for errors.
func (a *answer) String() string { return a.method + " " + shown(a.url) }

// refusedError says that the place where a redirect led to refuses the request: its URL may have
// expired.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// statusError returns the error of an answer by its status.
func (a *answer) statusError() error {
	err := fmt.Errorf("%s: %d %s", a, a.StatusCode, http.StatusText(a.StatusCode))
	switch a.StatusCode {
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("%w: %w", err, chunk.ErrNotFound)
	case http.StatusUnauthorized, http.StatusForbidden:
		if a.isTarget {
			return refusedError{err}
		}
		return fmt.Errorf("%w: %w", err, ErrDenied)
	case http.StatusBadRequest:
		if a.isTarget {
			return refusedError{err}
		}
	case http.StatusRequestedRangeNotSatisfiable:
		return a.invalid(errors.New("416 Range Not Satisfiable: the blob is shorter than its descriptor says"))
	}
	return err
}

// mustBe returns an error if an answer has another status.
func (a *answer) mustBe(status int) error {
	switch {
	case a.StatusCode == status:
		return nil
	case a.StatusCode < http.StatusMultipleChoices:
		return a.invalid(fmt.Errorf("it has status %d, want %d", a.StatusCode, status))
	}
	return a.statusError()
}

// invalid returns the error of an answer that is not what was asked for.
func (a *answer) invalid(err error) error { return &chunk.InvalidError{What: a.String(), Err: err} }

// refuseEncoding closes an answer that is compressed for transport, and returns an error. Nobody
// has asked for that, and digests and ranges are of other bytes.
func (a *answer) refuseEncoding() error {
	encoding := a.Header.Get("Content-Encoding")
	if encoding == "" || encoding == "identity" || a.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	_ = a.Body.Close() // not read
	return a.invalid(fmt.Errorf("it has Content-Encoding %q", encoding))
}
