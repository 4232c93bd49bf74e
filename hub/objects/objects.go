// Package objects stores the hub's objects: packs, indexes, locations and layer records. They are
// immutable and named by digests. Once published, an object is complete and durable until it is
// deleted.
//
// Objects are in a bucket: a directory, or another store that gocloud.dev/blob opens.
//
//	packs/PACK            a pack
//	indexes/TREE.zst      an index, zstd-compressed
//	locations/ID.zst      the locations of a tree, zstd-compressed; ID: SHA-256 of the plain bytes
//	layers/DIFFID.zst     the record of a layer, zstd-compressed
//
// The package does not know which objects are needed. It interprets the contents of locations and
// packs only: locations, units, and the tables of packs, which say where the units are.
//
// Hazard: if the bucket is a directory, Publish renames files into it. So these files must be on
// the same file system.
package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/s3blob"
	"gocloud.dev/gcerrors"
	"golang.org/x/sync/errgroup"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/hub/away"
)

// ErrNotFound marks errors about objects that do not exist.
var ErrNotFound = errors.New("no such object")

// PackKey returns the key of a pack.
func PackKey(id chunk.ID) string { return "packs/" + id.String() }

// IndexKey returns the key of a tree's index.
func IndexKey(tree chunk.ID) string { return "indexes/" + tree.String() + ".zst" }

// LocationsKey returns the key of the locations whose plain bytes have that SHA-256.
func LocationsKey(id chunk.ID) string { return "locations/" + id.String() + ".zst" }

// LayerKey returns the key of a layer's record.
func LayerKey(diffID string) string {
	return "layers/" + strings.TrimPrefix(diffID, "sha256:") + ".zst"
}

// Store is an open bucket. It is safe for concurrent use.
type Store struct {
	// Tables caches the tables of packs. Each store has a cache of its own, unless the caller sets
	// one that all stores of the process share, before the store is used.
	Tables *Tables

	bucket *blob.Bucket
	dir    string // the bucket's path; empty if the bucket is not a directory
	// s3Bucket is the bucket's name on S3, and s3Prefix begins the keys there, for requests that
	// package blob does not have.
	s3Bucket, s3Prefix string
}

// Open opens the bucket at a URL: file:///DIR, or a URL with the scheme of another driver that is
// built in. If the query of such a URL has prefix=PREFIX, the objects are below that prefix of the
// bucket.
func Open(ctx context.Context, bucketURL string) (*Store, error) {
	u, err := url.Parse(bucketURL)
	if err != nil {
		return nil, fmt.Errorf("open bucket: %w", err)
	}
	s := &Store{Tables: NewTables()}
	switch u.Scheme {
	case fileblob.Scheme:
		s.dir = filepath.Clean(u.Path)
		s.bucket, err = fileblob.OpenBucket(s.dir, &fileblob.Options{
			CreateDir: true, DirFileMode: 0o755, NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
		if err == nil {
			err = s.makeKinds()
		}
	case s3blob.Scheme:
		s.s3Bucket, s.s3Prefix = u.Host, u.Query().Get("prefix")
		if s.bucket, err = OpenS3(ctx, *u); err == nil && s.s3Prefix != "" {
			s.bucket = blob.PrefixedBucket(s.bucket, s.s3Prefix)
		}
	default:
		s.bucket, err = blob.OpenBucket(ctx, bucketURL)
	}
	if err == nil {
		if err = s.Ping(ctx); err != nil {
			err = errors.Join(err, s.bucket.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", u.Redacted(), err)
	}
	return s, nil
}

// pingTimeout bounds Ping.
const pingTimeout = 30 * time.Second

// Ping returns an error if the bucket does not exist, or cannot be reached.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	for _, kind := range kinds {
		if err := s.checkKind(kind); err != nil {
			return err
		}
	}
	accessible, err := s.bucket.IsAccessible(ctx)
	if err == nil && !accessible {
		err = noBucket(s.s3Bucket)
	}
	return err
}

// Close closes the bucket.
func (s *Store) Close() error { return s.bucket.Close() }

// Staged is a finished file that becomes an object.
type Staged struct{ Key, Path string }

// CompressFile compresses plain into a file, syncs the file, and returns its size in bytes.
func CompressFile(path string, plain []byte) (int64, error) {
	file, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	z := compress.IndexEncoder(file, int64(len(plain)))
	if _, err := z.Write(plain); err != nil {
		return 0, err
	}
	if err := errors.Join(z.Close(), file.Sync()); err != nil {
		return 0, err
	}
	return file.Seek(0, io.SeekCurrent)
}

// transfersAtOnce bounds the uploads, and the deletions, of one call.
const transfersAtOnce = 8

// Publish makes objects of files and removes the files. The caller has synced the files. An
// existing object with the same key is replaced: both have equivalent contents. After an error some
// of the objects may exist; the caller deletes them.
func (s *Store) Publish(ctx context.Context, staged []Staged) error {
	publish := s.upload
	if s.dir != "" {
		publish = s.move
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(transfersAtOnce)
	for _, f := range staged {
		group.Go(func() error {
			if err := publish(ctx, f); err != nil {
				return fmt.Errorf("store: %w", s.errorOf(f.Key, err))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return s.syncDirs(staged)
}

func (s *Store) upload(ctx context.Context, f Staged) error {
	file, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := s.put(ctx, f.Key, file); err != nil {
		return err
	}
	return os.Remove(f.Path)
}

// move is upload for a directory.
func (s *Store) move(ctx context.Context, f Staged) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.checkKind(f.Key); err != nil {
		return err
	}
	to := filepath.Join(s.dir, f.Key)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.Rename(f.Path, to)
}

// syncDirs makes the names of renamed files durable, if the bucket is a directory.
func (s *Store) syncDirs(staged []Staged) error {
	if s.dir == "" || len(staged) == 0 {
		return nil
	}
	dirs := map[string]bool{s.dir: true}
	for _, f := range staged {
		dirs[filepath.Dir(filepath.Join(s.dir, f.Key))] = true
	}
	for dir := range dirs {
		if err := durable.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// Delete deletes objects. It is no error if an object does not exist.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	if client := (*s3.Client)(nil); len(keys) > 1 && s.bucket.As(&client) {
		return s.deleteMany(ctx, client, keys)
	}
	var group errgroup.Group
	group.SetLimit(transfersAtOnce)
	errs := make([]error, len(keys))
	for i, key := range keys {
		group.Go(func() error {
			err := ctx.Err() // the right to delete may have ended
			if err == nil {
				err = s.bucket.Delete(ctx, key)
			}
			if err != nil && gcerrors.Code(err) != gcerrors.NotFound {
				errs[i] = fmt.Errorf("delete object %s: %w", key, err)
			}
			return nil
		})
	}
	_ = group.Wait() // errs has the errors
	return errors.Join(errs...)
}

// Object reads an object or a part of one.
type Object struct {
	Size  int64 // in bytes
	store *Store
	key   string
	r     *blob.Reader
}

// Open opens an object. The error wraps ErrNotFound if it does not exist.
func (s *Store) Open(ctx context.Context, key string) (*Object, error) {
	return s.openRange(ctx, key, 0, -1)
}

// Size returns the size of an object in bytes. The error wraps ErrNotFound if it does not exist.
func (s *Store) Size(ctx context.Context, key string) (int64, error) {
	// On S3 this moves no data. Its answer does not say whether the object or the bucket is
	// missing.
	attributes, err := s.bucket.Attributes(ctx, key)
	if s.dir == "" && gcerrors.Code(err) == gcerrors.NotFound {
		if pingErr := s.Ping(ctx); pingErr != nil {
			err = pingErr
		}
	}
	if err != nil {
		return 0, s.readErrorOf(key, err)
	}
	return attributes.Size, nil
}

// OpenPlain opens a compressed object and returns its plain bytes. The caller closes it. The error
// wraps ErrNotFound if it does not exist.
func (s *Store) OpenPlain(ctx context.Context, key string) (io.ReadCloser, error) {
	o, err := s.Open(ctx, key)
	if err != nil {
		return nil, err
	}
	return compress.ReadCloser(o)
}

func (s *Store) openRange(ctx context.Context, key string, offset, length int64) (*Object, error) {
	r, err := s.bucket.NewRangeReader(ctx, key, offset, length, nil)
	if err != nil {
		return nil, s.readErrorOf(key, err)
	}
	if length < 0 {
		length = r.Size() - offset
	}
	return &Object{Size: length, store: s, key: key, r: r}, nil
}

// ErrUnavailable marks errors about a bucket that is missing, and most errors of a bucket that is
// not a directory. The same request may succeed later; see IsAway.
var ErrUnavailable = away.New("the bucket is not available")

// IsAway reports whether an error says that the bucket is not available. If the bucket answers, the
// error is about one object, and the same request would fail again.
func (s *Store) IsAway(ctx context.Context, err error) bool {
	return errors.Is(err, ErrUnavailable) && s.Ping(ctx) != nil
}

// errorOf adds an object's key to an error of the bucket. It marks the error with ErrNotFound or
// ErrUnavailable if it means one of these.
func (s *Store) errorOf(key string, err error) error {
	err = NameBucket(s.s3Bucket, err)
	switch {
	case gcerrors.Code(err) == gcerrors.NotFound:
		if err = s.checkKind(key); err == nil {
			err = ErrNotFound
		}
	case s.dir == "" && !errors.Is(err, context.Canceled):
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("object %s: %w", key, err)
}

// Read reads the next bytes.
func (o *Object) Read(b []byte) (int, error) {
	n, err := o.r.Read(b)
	if err != nil && err != io.EOF {
		err = o.store.readErrorOf(o.key, err)
	}
	return n, err
}

// Close ends the reading.
func (o *Object) Close() error { return o.r.Close() }

// WriteTo writes the object to w. From a file to a connection the kernel copies the bytes.
func (o *Object) WriteTo(w io.Writer) (int64, error) {
	var file io.Reader
	if o.r.As(&file) && file != nil {
		return io.Copy(w, file)
	}
	return io.Copy(w, struct{ io.Reader }{o.r})
}

var _ io.WriterTo = (*Object)(nil)
