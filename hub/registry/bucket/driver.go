// Package bucket keeps the files of a registry in an S3 bucket: it is a storage driver of
// distribution/distribution, under the name "bucket". Its only parameter is "url":
// s3://BUCKET?region=…&endpoint=…&use_path_style=true&prefix=…. Package objects (OpenS3) reads it,
// except for prefix, which the driver puts before all keys. The SDK of AWS finds the credentials:
// in the environment, in its files, or by the machine's role.
//
//	driver.go  what the library asks for: files are objects below "registry/"
//	writer.go  files that are written in several requests, perhaps by several processes
//
// The library has a driver of its own, which needs an SDK of AWS that is no longer maintained.
//
// Directories exist as long as there are files in them. To move a file is to copy and to delete it,
// so a process that ends in between leaves both files.
package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/base"
	"github.com/distribution/distribution/v3/registry/storage/driver/factory"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
	"golang.org/x/sync/errgroup"

	"lighter/hub/objects"
)

const (
	// Name is the driver's name in the library's configuration.
	Name = "bucket"
	// prefix begins the keys of all files.
	prefix = "registry/"

	// maxCopy is the size up to which S3 copies an object with one request, and copyPart is the
	// size of the parts of a larger one, in bytes.
	maxCopy  = 5 << 30
	copyPart = 1 << 30
	// requestsAtOnce bounds the requests of one call.
	requestsAtOnce = 8
)

func init() { factory.Register(Name, opener{}) }

type opener struct{}

// Create opens the bucket at the parameter "url".
func (opener) Create(ctx context.Context, parameters map[string]any) (driver.StorageDriver, error) {
	u, err := url.Parse(fmt.Sprint(parameters["url"]))
	if err != nil {
		return nil, err
	}
	opened, err := objects.OpenS3(ctx, *u)
	if err != nil {
		return nil, err
	}
	f := &files{bucket: opened, name: u.Host, prefix: u.Query().Get("prefix"), copyAtOnce: maxCopy}
	if !opened.As(&f.client) {
		return nil, errors.Join(errors.New("the bucket is not on S3"), opened.Close())
	}
	return &Driver{base.Base{StorageDriver: f}, f}, nil
}

// Driver is the driver, with what the library does not ask for.
type Driver struct {
	base.Base
	files *files
}

// DeleteFiles deletes files, and unfinished uploads of them, with a few requests for all. The files
// are in a directory, or in directories there. It is no error if a file does not exist.
func (d *Driver) DeleteFiles(ctx context.Context, dir string, paths []string) error {
	keys := make([]string, len(paths))
	for i, path := range paths {
		keys[i] = d.files.key(path)
	}
	among := func(key string) bool { return slices.Contains(keys, key) }
	if _, err := d.files.abortUploads(ctx, d.files.key(dir)+"/", among); err != nil {
		return objects.NameBucket(d.files.name, err)
	}
	return d.files.deleteObjects(ctx, keys)
}

// files is all files in a bucket. Paths begin with a slash. It is safe for concurrent use.
type files struct {
	bucket     *blob.Bucket
	client     *s3.Client // for what package blob does not have
	name       string     // of the bucket, on S3
	prefix     string     // of all keys, before registry/; empty, or a domain's part of the bucket
	copyAtOnce int64      // the constant maxCopy; less in tests
}

var _ driver.StorageDriver = (*files)(nil)

// key returns the key of a file.
func (f *files) key(path string) string { return f.prefix + prefix + strings.TrimPrefix(path, "/") }

// pathError returns the library's error if the bucket's error says that there is no object. If
// there is no bucket, the error says that instead: nothing is known about the objects then.
func (f *files) pathError(path string, err error) error {
	err = objects.NameBucket(f.name, err)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return driver.PathNotFoundError{Path: path}
	}
	return err
}

// Name returns Name.
func (f *files) Name() string { return Name }

// GetContent returns a file.
func (f *files) GetContent(ctx context.Context, path string) ([]byte, error) {
	content, err := f.bucket.ReadAll(ctx, f.key(path))
	return content, f.pathError(path, err)
}

// noSniffing sets a content type, so that package blob does not guess one: only the library reads
// the objects.
var noSniffing = &blob.WriterOptions{ContentType: "application/octet-stream"}

// PutContent stores a file.
func (f *files) PutContent(ctx context.Context, path string, content []byte) error {
	return f.bucket.WriteAll(ctx, f.key(path), content, noSniffing)
}

// Reader reads a file from an offset on. Beyond its end there are no bytes.
func (f *files) Reader(ctx context.Context, path string, offset int64) (io.ReadCloser, error) {
	if offset < 0 {
		return nil, driver.InvalidOffsetError{Path: path, Offset: offset}
	}
	r, err := f.bucket.NewRangeReader(ctx, f.key(path), offset, -1, nil)
	var failed smithy.APIError
	if errors.As(err, &failed) && failed.ErrorCode() == "InvalidRange" {
		return io.NopCloser(strings.NewReader("")), nil
	}
	if err != nil {
		return nil, f.pathError(path, err)
	}
	return r, nil
}

// Stat describes a file or a directory.
func (f *files) Stat(ctx context.Context, path string) (driver.FileInfo, error) {
	info := driver.FileInfoFields{Path: path}
	attributes, err := f.bucket.Attributes(ctx, f.key(path))
	switch {
	case err == nil:
		info.Size, info.ModTime = attributes.Size, attributes.ModTime
	case gcerrors.Code(err) != gcerrors.NotFound:
		return nil, err
	default:
		page, _, err := f.bucket.ListPage(ctx, blob.FirstPageToken, 1, &blob.ListOptions{Prefix: f.key(path) + "/"})
		if err != nil {
			return nil, objects.NameBucket(f.name, err)
		}
		if len(page) == 0 {
			return nil, driver.PathNotFoundError{Path: path}
		}
		info.IsDir = true
	}
	return driver.FileInfoInternal{FileInfoFields: info}, nil
}

// List returns the files and directories in a directory.
func (f *files) List(ctx context.Context, dir string) (names []string, err error) {
	in := strings.TrimSuffix(f.key(dir), "/") + "/"
	listed := f.bucket.List(&blob.ListOptions{Prefix: in, Delimiter: "/"})
	for {
		o, err := listed.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, objects.NameBucket(f.name, err)
		}
		names = append(names, path.Join(dir, strings.TrimPrefix(o.Key, in)))
	}
	if len(names) == 0 && dir != "/" {
		return nil, driver.PathNotFoundError{Path: dir}
	}
	return names, nil
}

// Move renames a file. It replaces another one of that name.
func (f *files) Move(ctx context.Context, from, to string) error {
	attributes, err := f.bucket.Attributes(ctx, f.key(from))
	if err != nil {
		return f.pathError(from, err)
	}
	if attributes.Size > f.copyAtOnce {
		err = f.copyParts(ctx, f.key(from), f.key(to), attributes.Size)
	} else {
		err = f.bucket.Copy(ctx, f.key(to), f.key(from), nil)
	}
	if err != nil {
		return f.pathError(from, err)
	}
	return f.bucket.Delete(ctx, f.key(from))
}

// copyParts copies an object of any size inside the bucket.
func (f *files) copyParts(ctx context.Context, from, to string, size int64) error {
	// The parts have no checksums: one S3 server (versitygw) returns that of the whole source for
	// each copied part.
	upload, err := f.beginUpload(ctx, to, "")
	if err != nil {
		return err
	}
	step := min(copyPart, f.copyAtOnce)
	parts := make([]types.CompletedPart, (size+step-1)/step)
	group, parallel := errgroup.WithContext(ctx)
	group.SetLimit(requestsAtOnce)
	for i := range parts {
		group.Go(func() error {
			begin := int64(i) * step
			done, err := f.client.UploadPartCopy(parallel, &s3.UploadPartCopyInput{
				Bucket: &f.name, Key: &to, UploadId: &upload, PartNumber: aws.Int32(int32(i + 1)),
				CopySource:      aws.String(f.name + "/" + from), // paths have no characters to escape
				CopySourceRange: aws.String(fmt.Sprintf("bytes=%d-%d", begin, min(begin+step, size)-1)),
			})
			if err != nil {
				return fmt.Errorf("copy part %d of %s: %w", i+1, from, err)
			}
			parts[i] = types.CompletedPart{ETag: done.CopyPartResult.ETag, PartNumber: aws.Int32(int32(i + 1))}
			return nil
		})
	}
	err = group.Wait()
	if err == nil {
		err = f.completeUpload(ctx, to, upload, parts, size)
	}
	if err != nil {
		return errors.Join(err, f.abortUpload(context.WithoutCancel(ctx), to, upload))
	}
	return nil
}

// Delete deletes a file, or a directory with all that is in it, and unfinished uploads there.
func (f *files) Delete(ctx context.Context, path string) error {
	in := f.key(path) + "/"
	found, err := f.abortUploads(ctx, f.key(path),
		func(key string) bool { return key == f.key(path) || strings.HasPrefix(key, in) })
	if err != nil {
		return err
	}
	for _, one := range []string{f.key(path), f.key(path) + restSuffix} {
		err := f.bucket.Delete(ctx, one)
		if err != nil && gcerrors.Code(err) != gcerrors.NotFound {
			return err
		}
		found = found || err == nil
	}
	var keys []string
	listed := f.bucket.List(&blob.ListOptions{Prefix: in})
	for {
		o, err := listed.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		keys = append(keys, o.Key)
	}
	if !found && len(keys) == 0 {
		return driver.PathNotFoundError{Path: path}
	}
	return f.deleteObjects(ctx, keys)
}

// deleteObjects deletes objects. It is no error if an object does not exist.
func (f *files) deleteObjects(ctx context.Context, keys []string) error {
	failed, err := objects.DeleteKeys(ctx, f.client, f.name, keys)
	if err == nil && len(failed) > 0 {
		first := failed[0]
		return fmt.Errorf("delete %d of %d objects: %s: %s: %s", len(failed), len(keys),
			aws.ToString(first.Key), aws.ToString(first.Code), aws.ToString(first.Message))
	}
	return objects.NameBucket(f.name, err)
}

// RedirectURL returns no URL: clients read through the registry.
func (f *files) RedirectURL(*http.Request, string) (string, error) { return "", nil }

// last sorts after all characters that paths may have.
const last = "~"

// Walk calls fn for all files and directories in a directory, a directory before what is in it. The
// order is that of the files' keys. It lists 1,000 files with each request, and has only these in
// memory.
func (f *files) Walk(ctx context.Context, dir string, fn driver.WalkFn, options ...func(*driver.WalkOptions)) error {
	var o driver.WalkOptions
	for _, set := range options {
		set(&o)
	}
	in := strings.TrimSuffix(f.key(dir), "/") + "/"
	w := walk{fn: fn, root: strings.TrimSuffix(dir, "/")}
	request := &s3.ListObjectsV2Input{Bucket: &f.name, Prefix: &in}
	if o.StartAfterHint != "" {
		request.StartAfter = aws.String(f.key(o.StartAfterHint))
	}
	for {
		page, err := f.client.ListObjectsV2(ctx, request)
		if err != nil {
			return objects.NameBucket(f.name, fmt.Errorf("list %s: %w", in, err))
		}
		if len(page.Contents) == 0 && request.StartAfter == nil && dir != "/" {
			return driver.PathNotFoundError{Path: dir}
		}
		for _, object := range page.Contents {
			err := w.visit(driver.FileInfoFields{Path: w.root + "/" + strings.TrimPrefix(*object.Key, in),
				Size: aws.ToInt64(object.Size), ModTime: aws.ToTime(object.LastModified)})
			if errors.Is(err, driver.ErrFilledBuffer) {
				return nil
			}
			if err != nil {
				return err
			}
			request.StartAfter = object.Key
		}
		if !aws.ToBool(page.IsTruncated) || len(page.Contents) == 0 {
			return nil
		}
		if at := aws.ToString(request.StartAfter); w.skips(w.root + "/" + strings.TrimPrefix(at, in)) {
			request.StartAfter = aws.String(f.key(w.skipped + last))
		}
	}
}

// walk is one Walk.
type walk struct {
	fn      driver.WalkFn
	root    string // without a slash at its end
	dir     string // of the previous file, or empty
	skipped string // the last directory that is not entered, with a slash at its end, or empty
}

// skips reports whether a file is in a directory that is not entered.
func (w *walk) skips(path string) bool { return w.skipped != "" && strings.HasPrefix(path, w.skipped) }

// visit calls fn for a file, and before that for the directories in which it is the first file.
func (w *walk) visit(file driver.FileInfoFields) error {
	if w.skips(file.Path) {
		return nil
	}
	before := w.dir + "/"
	w.dir = path.Dir(file.Path)
	for end := len(w.root) + 1; ; end++ {
		length := strings.IndexByte(file.Path[end:], '/')
		if length < 0 {
			break
		}
		end += length
		dir := file.Path[:end]
		if strings.HasPrefix(before, dir+"/") {
			continue
		}
		err := w.fn(driver.FileInfoInternal{FileInfoFields: driver.FileInfoFields{Path: dir, IsDir: true}})
		if errors.Is(err, driver.ErrSkipDir) {
			w.skipped = dir + "/"
			return nil
		}
		if err != nil {
			return err
		}
	}
	err := w.fn(driver.FileInfoInternal{FileInfoFields: file})
	if errors.Is(err, driver.ErrSkipDir) { // there is nothing to enter
		return nil
	}
	return err
}
