package registry

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/distribution/distribution/v3/registry/storage/driver"

	"lighter/hub/away"
)

// reads is a storage whose failed reads of one file are away.ReadErrors. Writes and lists fail as
// before: they are not about one file that exists.
type reads struct{ driver.StorageDriver }

func (s reads) GetContent(ctx context.Context, file string) ([]byte, error) {
	b, err := s.StorageDriver.GetContent(ctx, file)
	return b, s.errorOf(file, err)
}

func (s reads) Stat(ctx context.Context, file string) (driver.FileInfo, error) {
	info, err := s.StorageDriver.Stat(ctx, file)
	return info, s.errorOf(file, err)
}

func (s reads) Reader(ctx context.Context, file string, offset int64) (io.ReadCloser, error) {
	r, err := s.StorageDriver.Reader(ctx, file, offset)
	if err != nil {
		return nil, s.errorOf(file, err)
	}
	return &fileReader{r, s, file}, nil
}

// fileReader reads one file of a storage.
type fileReader struct {
	io.ReadCloser
	from reads
	file string
}

func (r *fileReader) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	if err != nil && err != io.EOF {
		err = unavailable(r.from.errorOf(r.file, err)) // the library reads manifests, and returns err as it is
	}
	return n, err
}

// errorOf returns the error of a read of a file. It returns errors as they are if they will not
// last, or if the file is not one of those that name or have the bytes of a blob or manifest.
func (s reads) errorOf(file string, err error) error {
	cause := err
	if failed := (driver.Error{}); errors.As(err, &failed) { // it does not wrap its cause
		cause = failed.Detail
	}
	object := "file " + file
	data := dataPath.FindStringSubmatch(file)
	switch {
	case !away.IsLasting(cause):
		return err
	case data != nil:
		object = fmt.Sprintf("blob %s:%s", data[1], data[2])
	case !linkPath.MatchString(file) && !tagPath.MatchString(file):
		return err
	}
	return &away.ReadError{Object: object + " of the hub's registry", Err: err, Works: s.works,
		Remedy: fmt.Sprintf("restore %s in the registry's storage, or the hub's access to it, and run lighter jobs "+
			"retry; or delete it, and push or add the image again (lighter fsck --deep reads all blobs)", file)}
}

// probePath is the file that works writes and reads. It is next to the blobs, so that it is in the
// same file system, and under the same rules of access to a bucket. The library and walk skip it.
const probePath = blobsPath + "/probe"

// works returns an error if the storage cannot write and read a small file.
func (s reads) works(ctx context.Context) error {
	return away.Probe(ctx,
		func(ctx context.Context, b []byte) error { return s.StorageDriver.PutContent(ctx, probePath, b) },
		func(ctx context.Context) ([]byte, error) { return s.StorageDriver.GetContent(ctx, probePath) })
}
