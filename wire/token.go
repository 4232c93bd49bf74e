package wire

import (
	"fmt"
	"os"
	"strings"
)

// minToken is the minimal length of a token, in characters.
const minToken = 16

// ReadToken reads the administrators' token, which is the only line of a file. It refuses a file
// that every user of the machine can read or write.
func ReadToken(file string) (string, error) {
	token, err := readToken(file)
	if err != nil {
		return "", fmt.Errorf("read the administrators' token: %w", err)
	}
	return token, nil
}

func readToken(file string) (string, error) {
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
