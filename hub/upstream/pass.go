package upstream

import (
	"context"
	"io"

	"lighter/hub/pull"
	"lighter/hub/registry"
)

// Pass opens a blob of size bytes in a repository of another registry. open opens the repository.
// Concurrent readers of the same blob of a repository share one fetch, whatever their open, so the
// caller decides first whether a client may read the repository. ctx is that of the client's
// request. The caller closes the blob.
func (r *Reader) Pass(
	ctx context.Context, repository, digest string, size int64, open func(context.Context) (*pull.Source, error),
) (registry.Blob, error) {
	return r.join(ctx, place{repository, digest}, size, &r.passed, open)
}

// Passed opens a blob that is being read, or was read lately, from a repository of another
// registry. It reports false if the hub would have to fetch the blob. The caller closes the reader.
func (r *Reader) Passed(ctx context.Context, repository, digest string) (io.ReadCloser, bool) {
	r.mu.Lock()
	f := r.share(place{repository, digest})
	r.mu.Unlock()
	if f == nil {
		return nil, false
	}
	b := &blob{fetch: f, ctx: ctx}
	return &whole{b.Section(0, f.size), b}, true
}

// whole reads a blob from its beginning to its end.
type whole struct {
	io.Reader
	io.Closer
}
