package blobs

import (
	"regexp"
	"strconv"
	"strings"

	"lighter/wire"
)

// name is what a file's name says about a layer: SIZE-MANIFEST-LAYER, the digests in hexadecimal.
// So a symbolic link has all that is needed to fetch the layer, whatever the node remembers.
type name struct {
	size     int64
	manifest string // digest of an image's manifest that has the layer, and that a hub knows
	layer    string // digest
}

var namePattern = regexp.MustCompile(`^([1-9][0-9]{0,18})-([0-9a-f]{64})-([0-9a-f]{64})$`)

const algorithm = "sha256:"

// parseName parses a file's name.
func parseName(text string) (n name, ok bool) {
	parts := namePattern.FindStringSubmatch(text)
	if parts == nil {
		return n, false
	}
	size, err := strconv.ParseInt(parts[1], 10, 64)
	return name{size, algorithm + parts[2], algorithm + parts[3]}, err == nil
}

// isValid reports whether a name can be written: containerd, or a manifest, may name other sizes
// and digests.
func (n name) isValid() bool {
	return n.size > 0 && wire.IsDigest(n.manifest) && wire.IsDigest(n.layer)
}

// String returns the file's name.
func (n name) String() string {
	return strconv.FormatInt(n.size, 10) + "-" + hexOf(n.manifest) + "-" + hexOf(n.layer)
}

func hexOf(digest string) string { return strings.TrimPrefix(digest, algorithm) }
