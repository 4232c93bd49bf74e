package differ

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// bufferSize is how many bytes of a layer go to containerd in one message. (A compressor writes a
// few hundred bytes at a time.)
const bufferSize = 1 << 20

// A format says how a layer is written, and under which reference and labels.
type format struct {
	diff.Config
	compression compression.Compression
}

// formatOf returns the format that a request asks for.
func formatOf(opts []diff.Opt) (format, error) {
	var f format
	for _, opt := range opts {
		if err := opt(&f.Config); err != nil {
			return f, err
		}
	}
	if f.MediaType == "" {
		f.MediaType = ocispec.MediaTypeImageLayerGzip
	}
	var known bool
	f.compression, known = map[string]compression.Compression{
		ocispec.MediaTypeImageLayer:     compression.Uncompressed,
		ocispec.MediaTypeImageLayerGzip: compression.Gzip,
		ocispec.MediaTypeImageLayerZstd: compression.Zstd,
	}[f.MediaType]
	if !known || f.Compressor != nil {
		return f, refuse("layers of type " + f.MediaType)
	}
	return f, nil
}

// A layer is what a request asks for: the changes that a walk finds, in a format.
type layer struct {
	format
	walk walk
}

// writeTo writes the layer uncompressed.
func (l layer) writeTo(ctx context.Context, w io.Writer) error {
	var opts []archive.ChangeWriterOpt
	if l.SourceDateEpoch != nil {
		opts = append(opts, archive.WithModTimeUpperBound(*l.SourceDateEpoch))
	}
	entries := archive.NewChangeWriter(w, l.walk.top.path, opts...)
	if err := l.walk.report(ctx, entries.HandleChange); err != nil {
		return err
	}
	return entries.Close()
}

// compressTo writes the layer, and returns the digest of its uncompressed bytes, its diffID.
func (l layer) compressTo(ctx context.Context, w io.Writer) (digest.Digest, error) {
	diffID := digest.SHA256.Digester()
	compressed, err := compression.CompressStream(w, l.compression)
	if err != nil {
		return "", err
	}
	err = l.writeTo(ctx, io.MultiWriter(compressed, diffID.Hash()))
	if closed := compressed.Close(); err == nil {
		err = closed
	}
	return diffID.Digest(), err
}

// write writes a layer into containerd's content store.
func (d *Differ) write(ctx context.Context, l layer) (ocispec.Descriptor, error) {
	if l.Reference == "" {
		l.Reference = "lighter-" + rand.Text()
	}
	blob, diffID, err := d.upload(ctx, l)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("write the layer of %s: %w", l.walk.top.path, err)
	}
	info, err := d.store.Info(ctx, blob)
	if err == nil && l.compression != compression.Uncompressed && info.Labels[labels.LabelUncompressed] == "" {
		// The store had the blob already, without the label.
		info.Labels = map[string]string{labels.LabelUncompressed: diffID.String()}
		info, err = d.store.Update(ctx, info, "labels."+labels.LabelUncompressed)
	}
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("find layer %s in containerd's content store: %w", blob, err)
	}
	return ocispec.Descriptor{MediaType: l.MediaType, Digest: info.Digest, Size: info.Size}, nil
}

// upload writes a layer, and returns the digest of its blob and its diffID. If the store has the
// blob already, that is no error.
func (d *Differ) upload(ctx context.Context, l layer) (blob, diffID digest.Digest, err error) {
	w, err := d.store.Writer(ctx, content.WithRef(l.Reference),
		content.WithDescriptor(ocispec.Descriptor{MediaType: l.MediaType}))
	if err != nil {
		return "", "", err
	}
	defer func() {
		if err != nil {
			d.abort(ctx, w, l.Reference)
		}
	}()
	if err := w.Truncate(0); err != nil { // an earlier request with this reference may have failed
		return "", "", err
	}
	buffered, hash := bufio.NewWriterSize(w, bufferSize), digest.SHA256.Digester()
	if diffID, err = l.compressTo(ctx, io.MultiWriter(buffered, hash.Hash())); err != nil {
		return "", "", err
	}
	if err := buffered.Flush(); err != nil {
		return "", "", err
	}
	given := map[string]string{}
	maps.Copy(given, l.Labels)
	if l.compression != compression.Uncompressed {
		given[labels.LabelUncompressed] = diffID.String()
	}
	// Without an expected digest, containerd also adds a blob that it has already to the lease. The
	// next request of write asks for the right digest.
	err = w.Commit(ctx, 0, "", content.WithLabels(given))
	if errdefs.IsAlreadyExists(err) {
		err = nil
	}
	return hash.Digest(), diffID, err
}

// abort removes what was written for a layer.
func (d *Differ) abort(ctx context.Context, w content.Writer, reference string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	_ = w.Close() // it may be closed already
	if err := d.store.Abort(ctx, reference); err != nil && !errdefs.IsNotFound(err) {
		d.log.InfoContext(ctx, "cannot remove an unfinished layer from containerd: it removes it within a day",
			"reference", reference, "err", err)
	}
}
