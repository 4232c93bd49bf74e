package wire

import (
	"fmt"
	"os"
	"strings"
)

// minToken is the least length of a token, in characters.
const minToken = 16

// ReadToken reads the token of a hub's administrators from a file, whose only line it
// is. It refuses a file that every user of the machine can read or write.
func ReadToken(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", fmt.Errorf("read the token of the hub's administrators: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return "", fmt.Errorf("read the token of the hub's administrators: %s has mode %#o: everybody may use it (chmod 600)", file, mode)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the token of the hub's administrators: %w", err)
	}
	token := strings.TrimSpace(string(text))
	isOdd := func(r rune) bool { return r <= ' ' || r >= 0x7f }
	switch {
	case len(token) < minToken:
		return "", fmt.Errorf("read the token of the hub's administrators: %s has to hold at least %d characters (openssl rand -hex 32)", file, minToken)
	case strings.ContainsFunc(token, isOdd):
		return "", fmt.Errorf("read the token of the hub's administrators: %s has to hold one line without spaces, of ASCII", file)
	}
	return token, nil
}
