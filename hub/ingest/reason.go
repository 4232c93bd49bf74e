package ingest

import (
	"regexp"
	"strings"
	"unicode"
)

var (
	urlQuery = regexp.MustCompile(`(://[^\s"'?]*)\?[^\s"']*`)
	urlUser  = regexp.MustCompile(`://[^/\s"'@]*@`)
)

// maxReason bounds what is said of an error, in bytes.
const maxReason = 1000

// reason says why something failed, in one printable line for catalogs, logs and
// terminals: registries answer with what they like. URLs lose their users and
// queries, which may be secrets.
func reason(err error) string {
	text := urlQuery.ReplaceAllString(err.Error(), "$1")
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

// reasoned is an error that speaks as reason does.
type reasoned struct{ error }

func (r reasoned) Error() string { return reason(r.error) }
func (r reasoned) Unwrap() error { return r.error }
