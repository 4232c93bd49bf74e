package push

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// FilePath returns the file in a directory that WriteFile gives a blob.
func FilePath(dir string, d digest.Digest) string { return filepath.Join(dir, d.Encoded()) }

// WriteFile writes a blob to a file in a directory for temporary files. fill writes the bytes,
// which give the file its name: so the same blob is there once.
func WriteFile(dir, mediaType string, fill func(to io.Writer) error) (b Blob, err error) {
	file, err := os.CreateTemp(dir, "blob-*")
	if err != nil {
		return b, err
	}
	sum := digest.SHA256.Digester()
	buffered := bufio.NewWriterSize(io.MultiWriter(file, sum.Hash()), 1<<20)
	if err = fill(buffered); err == nil {
		err = buffered.Flush()
	}
	size, seekErr := file.Seek(0, io.SeekCurrent)
	if err = errors.Join(err, seekErr, file.Close()); err != nil {
		return b, err
	}
	path := FilePath(dir, sum.Digest())
	b = Blob{ocispec.Descriptor{MediaType: mediaType, Digest: sum.Digest(), Size: size},
		func() (io.ReadCloser, error) { return os.Open(path) }}
	return b, os.Rename(file.Name(), path)
}
