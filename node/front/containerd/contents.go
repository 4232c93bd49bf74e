package containerd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	contentproxy "github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
)

// contentTime bounds the time for a blob of containerd's content store.
const contentTime = 2 * time.Second

// Contents reads small blobs from containerd's content store: what a pull has fetched before its
// layers. It is safe for concurrent use.
type Contents struct {
	socket string
	conn   *grpc.ClientConn
	store  content.Provider
}

// OpenContents returns the contents of the containerd that listens on a Unix socket. It does not
// connect yet.
func OpenContents(socket string) (*Contents, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	return &Contents{socket, conn, contentproxy.NewContentStore(conn)}, nil
}

// Close closes the connection to containerd.
func (c *Contents) Close() error { return c.conn.Close() }

// Read returns a blob of limit bytes at most, verified, that a namespace has. That it is there does
// not say that the registry lets anybody read it now.
func (c *Contents) Read(ctx context.Context, namespace string, d digest.Digest, limit int64) ([]byte, error) {
	b, err := c.read(ctx, namespace, d, limit)
	if err != nil {
		return nil, fmt.Errorf("read blob %s from containerd at %s: %w", d, c.socket, err)
	}
	return b, nil
}

func (c *Contents) read(ctx context.Context, namespace string, d digest.Digest, limit int64) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, namespace), contentTime)
	defer cancel()
	r, err := c.store.ReaderAt(ctx, v1.Descriptor{Digest: d})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Size() > limit {
		return nil, fmt.Errorf("it has %d bytes, more than the limit of %d", r.Size(), limit)
	}
	b := make([]byte, r.Size())
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, r.Size()), b); err != nil {
		return nil, err
	}
	if got := d.Algorithm().FromBytes(b); got != d {
		return nil, fmt.Errorf("its digest is %s", got)
	}
	return b, nil
}
