package pull

import (
	"bytes"
	"context"
	"io"

	"lighter/hub/registry"
)

// Memory has manifests and blobs that the hub has just read from repositories, HOST[:PORT]/PATH, of
// other registries. It reports false for what it does not have. It does not know who may read a
// repository.
type Memory interface {
	Manifest(repository, digest string) (registry.Manifest, bool)
	// Blob opens a blob. Its bytes are not checked, and may end with an error.
	Blob(ctx context.Context, repository, digest string) (io.ReadCloser, bool)
}

// Recall makes a source read from m what m has. The source's registry has let the caller read the
// repository. It is called before the source is used.
func (s *Source) Recall(m Memory) { s.memory = m }

// fetch returns a reader of a blob, whose bytes are not checked. onRead receives progress, and may
// be nil.
func (s *Source) fetch(ctx context.Context, digest string, onRead func(int)) io.ReadCloser {
	if s.memory != nil {
		if blob, ok := s.memory.Blob(ctx, s.Repository(), digest); ok {
			return &countedReader{blob, onRead}
		}
	}
	if config, ok := s.configs.find(digest); ok {
		return &countedReader{io.NopCloser(bytes.NewReader(config)), onRead}
	}
	return s.blob(ctx, digest, onRead)
}

// countedReader reports how many bytes are read.
type countedReader struct {
	io.ReadCloser
	onRead func(int) // may be nil
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if c.onRead != nil {
		c.onRead(n)
	}
	return n, err
}
