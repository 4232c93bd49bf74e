package report

import (
	"regexp"
	"strings"
)

// hidden matches what a reason may have that is not for everybody: credentials, URLs, addresses,
// names of hosts, and paths of files.
var hidden = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`(?i)\b(bearer|basic|token|password|secret)([=: ]+)[^\s,;"']+`), "$1$2[hidden]"},
	{regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"')]+`), "[address]"},
	{regexp.MustCompile(`\[[0-9A-Fa-f:.]+(%\w+)?\](:\d+)?`), "[address]"},
	{regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b`), "[address]"},
	{regexp.MustCompile(`[0-9A-Fa-f]*(:[0-9A-Fa-f]*){2,}(%\w+)?`), "[address]"},
	{regexp.MustCompile(`\b[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}(:\d+)?\b`), "[address]"},
	{regexp.MustCompile(`\b[A-Za-z0-9-]+:\d{2,5}\b`), "[address]"},
	{regexp.MustCompile(`\blookup [A-Za-z0-9_-]+`), "lookup [address]"},
	{regexp.MustCompile(`(^|[\s"'(=])/[^\s"':,)]+`), "${1}[path]"},
}

// maxRedacted bounds a redacted text, in bytes.
const maxRedacted = 400

// Redact returns a reason as everybody may read it: without credentials, addresses, names of hosts,
// and paths of files. The image's own name stays.
func Redact(reason, name string) string {
	parts := []string{reason}
	if name != "" {
		parts = strings.Split(reason, name)
	}
	for i := range parts {
		for _, h := range hidden {
			parts[i] = h.what.ReplaceAllString(parts[i], h.by)
		}
	}
	text := line(strings.Join(parts, name))
	return strings.ToValidUTF8(text[:min(len(text), maxRedacted)], "")
}
