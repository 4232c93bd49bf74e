package pull

import "sync"

// maxConfigs bounds the bytes of the configs that are kept of a repository.
const maxConfigs = 64 << 10

// configs are configs that were read from a repository, by digest. They are read to see whether an
// image is wanted, and copied later. It is safe for concurrent use.
type configs struct {
	mu    sync.Mutex // guards the following
	kept  map[string][]byte
	bytes int
}

func newConfigs() *configs { return &configs{kept: map[string][]byte{}} }

// add keeps a config, if there is room. Nobody changes its bytes.
func (c *configs) add(digest string, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept[digest] == nil && c.bytes+len(b) <= maxConfigs {
		c.kept[digest] = b
		c.bytes += len(b)
	}
}

func (c *configs) find(digest string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, found := c.kept[digest]
	return b, found
}
