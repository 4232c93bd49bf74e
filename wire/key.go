package wire

import (
	"crypto/ed25519"
	"strings"

	"lighter/format/index"
)

// ParseKeys parses public keys, one per line and at least one.
func ParseKeys(text []byte) (keys []ed25519.PublicKey, err error) {
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		key, err := index.ParseKey(line)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}
