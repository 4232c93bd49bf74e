package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"lighter/hub/away"
	"lighter/hub/objects"
	"lighter/mirror/files"
)

// target is the place of a mirror: a directory, or a bucket on S3. Paths are those of a hub's URLs.
type target interface {
	// Read returns a small file. The error wraps fs.ErrNotExist if there is none.
	Read(ctx context.Context, path string) ([]byte, error)
	// Write publishes a file, or replaces it. The file is complete and durable.
	Write(ctx context.Context, path string, r io.Reader) error
	// Names lists the files in a directory: none if there is no such directory.
	Names(ctx context.Context, dir string) ([]string, error)
	// Remove removes files. It is no error if one does not exist.
	Remove(ctx context.Context, paths []string) error
}

// Place says where the mirrors of all domains of a hub are. One domain is exported at a time.
type Place struct {
	to  string
	one chan struct{} // has an element while a domain is exported
}

// NewPlace returns the place with a name: an absolute path of a directory, or s3://BUCKET?region=….
func NewPlace(to string) *Place { return &Place{to: to, one: make(chan struct{}, 1)} }

// CheckPlace returns an error if to names no place. It connects to nothing.
func CheckPlace(to string) error {
	u, isBucket := bucketURL(to)
	switch {
	case isBucket:
		return objects.CheckS3(*u)
	case !filepath.IsAbs(to):
		return fmt.Errorf("%q: want the absolute path of a directory, or s3://BUCKET?region=REGION", to)
	}
	return nil
}

// IsBucket reports whether a place is a bucket.
func IsBucket(to string) bool {
	_, is := bucketURL(to)
	return is
}

func bucketURL(to string) (*url.URL, bool) {
	u, err := url.Parse(to)
	return u, err == nil && u.Scheme == "s3" && u.Host != ""
}

// open opens the place, once it is free. The caller calls close.
func (p *Place) open(ctx context.Context) (t target, closeIt func() error, err error) {
	select {
	case p.one <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	t, end, err := p.openFree(ctx)
	if err != nil {
		<-p.one
		return nil, nil, err
	}
	return t, func() error {
		err := end()
		<-p.one
		return err
	}, nil
}

func (p *Place) openFree(ctx context.Context) (target, func() error, error) {
	u, isBucket := bucketURL(p.to)
	if !isBucket {
		dir, end, err := files.Open(p.to)
		return dirTarget{dir}, func() error { end(); return nil }, err
	}
	bucket, err := objects.OpenS3(ctx, *u)
	if err != nil {
		return nil, nil, fmt.Errorf("open the bucket of the mirror: %w", err)
	}
	prefix := u.Query().Get("prefix")
	if prefix != "" {
		bucket = blob.PrefixedBucket(bucket, prefix)
	}
	return bucketTarget{bucket, u.Host, prefix}, bucket.Close, nil
}

// stepped calls step before each change of a target.
type stepped struct {
	target
	step func(path string) error
}

func (t stepped) Write(ctx context.Context, path string, r io.Reader) error {
	if err := t.step(path); err != nil {
		return err
	}
	return t.target.Write(ctx, path, r)
}

func (t stepped) Remove(ctx context.Context, paths []string) error {
	for _, path := range paths {
		if err := t.step(path); err != nil {
			return err
		}
	}
	return t.target.Remove(ctx, paths)
}

// dirTarget is a directory.
type dirTarget struct{ dir files.Dir }

func (t dirTarget) Read(_ context.Context, path string) ([]byte, error) { return t.dir.Read(path) }

func (t dirTarget) Write(ctx context.Context, path string, r io.Reader) error {
	return t.dir.WriteFrom(ctx, path, r)
}

func (t dirTarget) Names(_ context.Context, dir string) ([]string, error) { return t.dir.Names(dir) }

func (t dirTarget) Remove(ctx context.Context, paths []string) error { return t.dir.Remove(ctx, paths) }

// bucketTarget is a bucket on S3. Its objects can be read over HTTP if the bucket is public.
type bucketTarget struct {
	bucket       *blob.Bucket
	name, prefix string
}

// errAway marks the errors of a bucket, except about missing objects. The same request may succeed
// later.
var errAway = away.New("the bucket of the mirror is not available")

func keyOf(path string) string { return strings.TrimPrefix(path, "/") }

func (t bucketTarget) Read(ctx context.Context, path string) ([]byte, error) {
	b, err := t.bucket.ReadAll(ctx, keyOf(path))
	return b, t.errorOf("read", path, err)
}

func (t bucketTarget) Write(ctx context.Context, path string, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx) // of an upload that fails, nothing stays
	defer cancel()
	w, err := t.bucket.NewWriter(ctx, keyOf(path), &blob.WriterOptions{ContentType: "application/octet-stream",
		CacheControl: cacheControl(path), DisableContentTypeDetection: true})
	if err == nil {
		if _, err = io.Copy(w, r); err != nil {
			cancel()
			err = errors.Join(err, w.Close())
		} else {
			err = w.Close()
		}
	}
	return t.errorOf("write", path, err)
}

// cacheControl returns how long caches may keep a file. Files named by digests never change. All
// others may be kept for about as long as what the hub itself sends.
func cacheControl(path string) string {
	switch kind, _, _ := strings.Cut(strings.TrimPrefix(afterDomain(path), "/"), "/"); kind {
	case "packs", "indexes":
		return "public, max-age=31536000, immutable"
	case "locations":
		return "public, max-age=60"
	}
	return "max-age=5"
}

// afterDomain returns the part of a path after /lighter/1/DOMAIN.
func afterDomain(path string) string {
	parts := strings.SplitN(path, "/", 5)
	return "/" + parts[len(parts)-1]
}

func (t bucketTarget) Names(ctx context.Context, dir string) (names []string, err error) {
	list := t.bucket.List(&blob.ListOptions{Prefix: keyOf(dir) + "/"})
	for {
		o, err := list.Next(ctx)
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, t.errorOf("list", dir, err)
		}
		names = append(names, path.Base(o.Key))
	}
}

func (t bucketTarget) Remove(ctx context.Context, paths []string) error {
	client := (*s3.Client)(nil)
	if !t.bucket.As(&client) {
		return errors.New("the bucket of the mirror is not on S3")
	}
	keys := make([]string, len(paths))
	for i, path := range paths {
		keys[i] = t.prefix + keyOf(path)
	}
	failed, err := objects.DeleteKeys(ctx, client, t.name, keys)
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("%s: %s: %s", aws.ToString(failed[0].Key), aws.ToString(failed[0].Code),
			aws.ToString(failed[0].Message))
	}
	return t.errorOf("remove", fmt.Sprint(len(paths), " files"), err)
}

// errorOf adds the operation and the object to an error of the bucket.
func (t bucketTarget) errorOf(operation, path string, err error) error {
	if err == nil {
		return nil
	}
	err = objects.NameBucket(t.name, err)
	switch {
	case gcerrors.Code(err) == gcerrors.NotFound:
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case !errors.Is(err, context.Canceled):
		err = fmt.Errorf("%w: %w", errAway, err)
	}
	return fmt.Errorf("%s %s of the mirror: %w", operation, path, err)
}
