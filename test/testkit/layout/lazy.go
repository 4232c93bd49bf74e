package layout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/compress"
	"lighter/format/stargz"
)

// Lazy makes an OCI layout in the directory to. Its image is that of the OCI layout from, with
// layers in a lazy format.
func Lazy(ctx context.Context, from, to string, o stargz.Options) error {
	if err := os.MkdirAll(filepath.Join(to, "blobs/sha256"), 0o755); err != nil {
		return err
	}
	manifest, err := Manifest(from)
	if err != nil {
		return err
	}
	config, err := Config(from)
	if err != nil {
		return err
	}
	for i, d := range manifest.Layers {
		if manifest.Layers[i], config.RootFS.DiffIDs[i], err = lazyLayer(ctx, from, to, d, o); err != nil {
			return fmt.Errorf("convert layer %s: %w", d.Digest, err)
		}
	}
	return Write(to, manifest, config)
}

func lazyLayer(
	ctx context.Context, from, to string, d ocispec.Descriptor, o stargz.Options,
) (made ocispec.Descriptor, diffID digest.Digest, err error) {
	archive, size, err := untarred(Blob(from, d), to)
	if err != nil {
		return made, "", err
	}
	defer archive.Close()
	path := filepath.Join(to, "layer")
	out, err := os.Create(path)
	if err != nil {
		return made, "", err
	}
	defer out.Close()
	made.MediaType = ocispec.MediaTypeImageLayerGzip
	encode := compress.GzipMember(gzip.BestSpeed)
	if o.Format != stargz.EStargz {
		made.MediaType = ocispec.MediaTypeImageLayerZstd
		encode = compress.ZstdFrame(zstd.SpeedFastest, 1)
	}
	written, err := stargz.Write(ctx, out, archive, size, stargz.Serial(encode), o)
	if err != nil {
		return made, "", err
	}
	made.Digest, made.Size = digest.NewDigestFromEncoded(digest.SHA256, written.Digest.String()), written.Size
	made.Annotations = written.Annotations
	return made, digest.NewDigestFromEncoded(digest.SHA256, written.DiffID.String()), os.Rename(path, Blob(to, made))
}

// untarred returns an unnamed file in dir with a layer's tar archive, and its size.
func untarred(blob, dir string) (archive *os.File, size int64, err error) {
	in, err := os.Open(blob)
	if err != nil {
		return nil, 0, err
	}
	defer in.Close()
	plain, err := compress.Layer(in)
	if err != nil {
		return nil, 0, err
	}
	defer plain.Close()
	if archive, err = os.CreateTemp(dir, "tar-"); err != nil {
		return nil, 0, err
	}
	size, err = io.Copy(archive, plain)
	if err = errors.Join(err, os.Remove(archive.Name())); err != nil {
		archive.Close()
		return nil, 0, err
	}
	return archive, size, nil
}
