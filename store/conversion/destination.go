package conversion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/store/registry"
)

// Destination is where an image is written to.
type Destination struct {
	name string
	target
}

// target is a registry, or an OCI layout.
type target interface {
	// create returns a file for a new layer. dir is for temporary files. One file is open at a
	// time.
	create(dir string) (*os.File, error)
	// layer publishes the file, whose bytes have the descriptor's digest. report is called with the
	// number of bytes of each step.
	layer(ctx context.Context, file *os.File, d ocispec.Descriptor, report func(n int64)) error
	// copy publishes layer n of an image. The file has its bytes.
	copy(ctx context.Context, from *registry.Original, n int, file *os.File, report func(n int64)) error
	blob(ctx context.Context, d ocispec.Descriptor, b []byte) error
	manifest(ctx context.Context, d ocispec.Descriptor, b []byte) error
	// publish publishes the manifest of the whole, and gives it the destination's name.
	publish(ctx context.Context, d ocispec.Descriptor, b []byte) error
	Close() error
}

// ErrNoDestination marks errors of names that are no destination.
var ErrNoDestination = errors.New("no destination")

// Open opens a destination: oci:DIR[:TAG] or docker://HOST/REPO[:TAG]. The layout is locked until
// Close. plainHTTP allows plain HTTP to a registry that is not on this machine. The error wraps
// ErrNoDestination or registry.ErrNoImage if name is not one of these, or DIR has something else.
// A repository to which this user may not push is refused.
func Open(ctx context.Context, name string, plainHTTP bool) (*Destination, error) {
	if ref, ok := strings.CutPrefix(name, "docker://"); ok {
		to, err := registry.FindDestination(ctx, ref, plainHTTP)
		if err == nil {
			err = to.May(ctx) // before anything is converted
		}
		if err != nil {
			return nil, err
		}
		return &Destination{name, remote{to}}, nil
	}
	if path, ok := strings.CutPrefix(name, "oci:"); ok && path != "" {
		dir, tag, _ := strings.Cut(path, ":")
		l, err := openLayout(dir, tag)
		if err != nil {
			return nil, fmt.Errorf("write the OCI layout %s: %w", dir, err)
		}
		return &Destination{name, l}, nil
	}
	return nil, fmt.Errorf("%q is %w: want oci:DIR[:TAG] or docker://HOST/REPO[:TAG]", name, ErrNoDestination)
}

// remote is a name in a registry.
type remote struct{ to *registry.Destination }

func (remote) create(dir string) (*os.File, error) { return unnamed(dir) }

func (r remote) layer(ctx context.Context, file *os.File, d ocispec.Descriptor, report func(n int64)) error {
	return r.to.Blob(ctx, d, opener(file, d.Size, report))
}

func (r remote) copy(ctx context.Context, from *registry.Original, n int, file *os.File, report func(n int64)) error {
	return r.to.Layer(ctx, from, n, opener(file, from.Layers[n].Size, report))
}

func opener(file *os.File, size int64, report func(n int64)) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		return io.NopCloser(reported{io.NewSectionReader(file, 0, size), report}), nil
	}
}

func (r remote) blob(ctx context.Context, d ocispec.Descriptor, b []byte) error {
	return r.to.Blob(ctx, d, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
}

func (r remote) manifest(ctx context.Context, d ocispec.Descriptor, b []byte) error {
	return r.to.Manifest(ctx, d, b)
}

func (r remote) publish(ctx context.Context, d ocispec.Descriptor, b []byte) error {
	return r.to.Name(ctx, d, b)
}

func (remote) Close() error { return nil }

// reported reports what is read.
type reported struct {
	io.Reader
	report func(n int64)
}

func (r reported) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.report(int64(n))
	return n, err
}
