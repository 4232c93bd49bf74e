package wire

import (
	"fmt"
	"net/http"
	"os"
	"strings"

	"lighter/format/chunk"
)

// minToken is the minimal length of a token, in characters.
const minToken = 16

// ReadToken reads the administrators' token from a file, as ReadSecret does.
func ReadToken(file string) (string, error) {
	token, err := ReadSecret(file)
	if err != nil {
		return "", fmt.Errorf("read the administrators' token: %w", err)
	}
	return token, nil
}

// ReadSecret reads a secret, which is the only line of a file. It refuses a file that every user of
// the machine can read or write.
func ReadSecret(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return "", fmt.Errorf("%s has mode %#o, so every user may use it: chmod 600", file, mode)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	isInvalid := func(r rune) bool { return r <= ' ' || r >= 0x7f }
	switch {
	case len(token) < minToken:
		return "", fmt.Errorf("%s: want at least %d characters (openssl rand -hex 32)", file, minToken)
	case strings.ContainsFunc(token, isInvalid):
		return "", fmt.Errorf("%s: want one line of printable ASCII without spaces", file)
	}
	return token, nil
}

// IsForAdministrators reports whether a request to a hub needs the administrators' token. Requests
// that change something or start work need the token. The list of holders needs it, too, because
// the list has the names and addresses of machines. So does the list of events, whose failures name
// targets. Reports of nodes and mirrors, which are traces to TracePath and the trees of a holder to
// HeldPath, need no token. Neither do webhooks, which have secrets of their own.
//
// Hub and clients share the rule: a hub refuses such requests without the token (package access),
// and a client sends the token with no other requests.
func IsForAdministrators(method, path string) bool {
	rest, ok := strings.CutPrefix(path, Prefix+"/")
	_, word, _ := strings.Cut(rest, "/")
	switch method {
	case http.MethodGet, http.MethodHead:
		return ok && (word == "holders" || word == "events")
	case http.MethodPost:
		return !isTrace(method, path) && !(ok && word == "held") && !strings.HasPrefix(path, HooksPrefix)
	}
	return true
}

// isTrace reports whether a request sends a trace to TracePath.
func isTrace(method, path string) bool {
	rest, ok := strings.CutPrefix(path, Prefix+"/")
	parts := strings.Split(rest, "/")
	if !ok || method != http.MethodPost || len(parts) != 3 || parts[1] != "traces" {
		return false
	}
	_, err := chunk.ParseID(parts[2])
	return err == nil
}
