// Package report has what the hub reports to users about their requests: progress while the work
// runs, and afterwards the kind of an error and its reason in one printable line.
package report

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"lighter/wire"
)

var (
	// ErrSenderFull marks traces that the hub refuses because of their sender's limit.
	ErrSenderFull = errors.New("this sender has sent enough traces of this image")
	// ErrBusy marks requests that the hub refuses because of other work. Repeated later, they may
	// succeed.
	ErrBusy = errors.New("the hub is busy with other work")
	// ErrInvalid marks requests that are wrong as they are: repeating them does not help.
	ErrInvalid = errors.New("invalid request")
)

// ParseName is wire.ParseName with errors that wrap ErrInvalid.
func ParseName(name string) (wire.Ref, error) {
	ref, err := wire.ParseName(name)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return ref, err
}

// TooLongError ends work that has taken longer than the limit for all images of a name.
type TooLongError struct{ Limit time.Duration }

func (e *TooLongError) Error() string {
	return fmt.Sprintf("took longer than %v, the limit for all images of a name (limits.image_minutes)", e.Limit)
}

var (
	urlQuery = regexp.MustCompile(`(://[^\s"'?]*)\?[^\s"']*`)
	urlUser  = regexp.MustCompile(`://[^/\s"'@]*@`)
	// sdkNoise is what the SDK of AWS says before it comes to the cause.
	sdkNoise = regexp.MustCompile(`operation error (\w+): (\w+), (?:exceeded maximum number of attempts, \d+, )?` +
		`(?:https response error StatusCode: (?:0|(\d+)), RequestID: [^,]*, HostID: [^,]*, )?`)
)

// Public returns an error's text for clients. An error in err's chain may have a method Public.
// Then the result of that method replaces the error's own text, which only the log may have.
func Public(err error) string {
	text := err.Error()
	var replace func(err error)
	replace = func(err error) {
		switch e := err.(type) {
		case nil:
		case interface{ Public() string }:
			text = strings.ReplaceAll(text, err.Error(), e.Public())
		case interface{ Unwrap() error }:
			replace(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				replace(err)
			}
		}
	}
	replace(err)
	return text
}

// maxReason bounds a reason, in bytes. A longer one is cut there, and an ellipsis is added.
const maxReason = 1000

// Reason returns an error's text as one bounded, printable line for the catalog and terminals.
// Parts of that text come from other registries and are not trusted. URLs lose their users and
// queries, which may be secrets.
func Reason(err error) string { return line(Public(err)) }

// line makes a text one bounded, printable line without the users and queries of URLs.
func line(text string) string {
	text = sdkNoise.ReplaceAllString(text, "$1 $2: $3 ")
	text = urlQuery.ReplaceAllString(text, "$1")
	text = urlUser.ReplaceAllString(text, "://")
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// Logged wraps err for the log: its text is one bounded line like that of Reason, but has the
// details that Public leaves out.
func Logged(err error) error { return loggedError{err} }

type loggedError struct{ error }

func (l loggedError) Error() string { return line(l.error.Error()) }
func (l loggedError) Unwrap() error { return l.error }

// Error wraps err so that its text is its Reason. Nil stays nil.
func Error(err error) error {
	if err == nil {
		return nil
	}
	return reasonError{err}
}

type reasonError struct{ error }

func (r reasonError) Error() string { return Reason(r.error) }
func (r reasonError) Unwrap() error { return r.error }
