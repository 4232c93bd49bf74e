package conversion

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/compress"
	"lighter/format/soci"
	"lighter/store/registry"
)

const (
	// pendingPerJob is how many members may wait for each job, so that small files are compressed
	// while the writer waits for a large one.
	pendingPerJob = 4
	// dockerLayer is the beginning of Docker's media types of layers.
	dockerLayer = "application/vnd.docker.image.rootfs.diff.tar"
)

// converter converts layers. Layers that images share are converted once.
type converter struct {
	Options
	to        *Destination
	mediaType string // of the new layers
	encode    func(plain []byte) ([]byte, error)
	make      func(ctx context.Context, from *registry.Original, n int) (converted, error)
	known     map[string]converted // by digest and diffID of the old layer
	reporting sync.Mutex
}

// converted is a layer that was converted and published.
type converted struct {
	descriptor ocispec.Descriptor // of a new layer
	diffID     digest.Digest      // of a new layer
	ztoc       *soci.Blob         // of a layer that stays as it is; nil: it has none
	table      *soci.Table        // ztoc, if it is searched for files
	result     Layer
}

func newConverter(o Options, to *Destination) (*converter, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	o.Jobs = max(o.Jobs, 1)
	if o.Report == nil {
		o.Report = func(string, string, int64, int64) {}
	}
	c := &converter{Options: o, to: to, known: map[string]converted{}}
	c.make = c.rewrite
	switch o.Format {
	case SOCI:
		c.make = c.copy
	case EStargz:
		c.mediaType, c.encode = ocispec.MediaTypeImageLayerGzip, compress.GzipMember(o.level())
	case ZstdChunked:
		c.mediaType = ocispec.MediaTypeImageLayerZstd
		c.encode = compress.ZstdFrame(zstd.EncoderLevelFromZstd(o.level()), o.Jobs)
	}
	return c, nil
}

// layer converts a layer, and publishes it.
func (c *converter) layer(ctx context.Context, from *registry.Original, n int) (l converted, err error) {
	old := from.Layers[n]
	key := old.Digest.String() + " " + from.DiffIDs[n]
	if l, known := c.known[key]; known {
		l.descriptor.Annotations = annotated(old, l.descriptor.Annotations)
		return l, nil
	}
	if from.Digest != "" && !isTar(old.MediaType) {
		return l, fmt.Errorf("its media type is %q, which is no layer of files", old.MediaType)
	}
	if l, err = c.make(ctx, from, n); err != nil {
		return l, err
	}
	c.known[key] = l
	l.descriptor.Annotations = annotated(old, l.descriptor.Annotations)
	return l, nil
}

// rewrite converts a layer, and publishes it. Its annotations are only those of the format.
func (c *converter) rewrite(ctx context.Context, from *registry.Original, n int) (l converted, err error) {
	archive, size, err := c.unpack(ctx, from, n)
	if err != nil {
		return l, fmt.Errorf("read it: %w", err)
	}
	defer func() { err = errors.Join(err, archive.Close()) }()
	out, err := c.to.create(c.Dir)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w, err := c.write(ctx, out, archive, size, nameOf(from, n))
	if err != nil {
		return l, err
	}
	l.descriptor = ocispec.Descriptor{MediaType: c.mediaType, Size: w.Size,
		Digest: digest.NewDigestFromEncoded(digest.SHA256, w.Digest.String())}
	l.diffID = digest.NewDigestFromEncoded(digest.SHA256, w.DiffID.String())
	w.Annotations[uncompressedSize] = strconv.FormatInt(w.PlainSize, 10)
	l.result = Layer{From: nameOf(from, n), OldSize: size, Digest: l.descriptor.Digest.String(), NewSize: w.Size,
		DiffID: l.diffID.String()}
	if from.Digest != "" {
		l.result.OldSize = from.Layers[n].Size
	}
	if err := c.to.layer(ctx, out, l.descriptor, c.reporter("push", l.result.Digest, w.Size)); err != nil {
		return l, err
	}
	l.descriptor.Annotations = w.Annotations
	return l, nil
}

// annotated returns the annotations of a new layer, with those of the old one.
func annotated(old ocispec.Descriptor, own map[string]string) map[string]string {
	all := keptAnnotations(old.Annotations)
	if all == nil {
		all = map[string]string{}
	}
	for key, value := range own {
		all[key] = value
	}
	return all
}

// nameOf returns a layer's digest, or its diffID if it has none.
func nameOf(from *registry.Original, n int) string {
	if from.Digest == "" {
		return from.DiffIDs[n]
	}
	return from.Layers[n].Digest.String()
}

// isTar reports whether layers of a media type can be read: those that are encrypted, or are not in
// the registry, cannot.
func isTar(mediaType string) bool {
	switch mediaType {
	case ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd,
		dockerLayer, dockerLayer + ".gzip", dockerLayer + ".zstd":
		return true
	}
	return false
}

// reporter returns a function that reports bytes of a step. A library may call it in a goroutine
// that outlives its step.
func (c *converter) reporter(step, layer string, total int64) func(n int64) {
	done := int64(0)
	return func(n int64) {
		c.reporting.Lock()
		defer c.reporting.Unlock()
		done = min(done+n, total)
		c.Report(step, layer, done, total)
	}
}
