package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
)

// kinds are the prefixes of the objects' keys, sorted. A bucket may also have keys with other
// prefixes.
var kinds = []string{"indexes/", "layers/", "locations/", "packs/"}

// Info describes an object.
type Info struct {
	Key  string
	Size int64     // in bytes
	Time time.Time // when it was made
}

// pageSize is the number of objects in one answer of S3, which is its maximum.
const pageSize = 1000

// List yields the objects whose keys are after a key, in the order of keys. An error is the last
// element. An object that is published or deleted meanwhile may be missing.
func (s *Store) List(ctx context.Context, after string) iter.Seq2[Info, error] {
	list := s.listBucket
	if s.dir != "" {
		list = s.listDir
	}
	return func(yield func(Info, error) bool) {
		for _, kind := range kinds {
			if after >= kind && !strings.HasPrefix(after, kind) {
				continue // the parameter after is beyond all keys of this kind
			}
			for info, err := range list(ctx, kind, after) {
				if err != nil {
					yield(Info{}, fmt.Errorf("list the bucket: %w", err))
					return
				}
				if !yield(info, nil) {
					return
				}
			}
		}
	}
}

// listDir is List of one kind, in a directory.
func (s *Store) listDir(ctx context.Context, kind, after string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		entries, err := os.ReadDir(filepath.Join(s.dir, kind)) // sorted
		if errors.Is(err, fs.ErrNotExist) {
			err = cmp.Or(s.checkKind(kind), err)
		}
		if err != nil {
			yield(Info{}, err)
			return
		}
		for _, entry := range entries {
			key := kind + entry.Name()
			if key <= after || entry.IsDir() {
				continue
			}
			info, err := entry.Info()
			if errors.Is(err, fs.ErrNotExist) { // it was deleted
				continue
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				yield(Info{}, err)
				return
			}
			if !yield(Info{Key: key, Size: info.Size(), Time: info.ModTime()}, nil) {
				return
			}
		}
	}
}

// listBucket is List of one kind, page by page.
func (s *Store) listBucket(ctx context.Context, kind, after string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		options := &blob.ListOptions{Prefix: kind, BeforeList: func(as func(any) bool) error {
			if input := (*s3.ListObjectsV2Input)(nil); as(&input) && after != "" {
				input.StartAfter = aws.String(s.s3Prefix + after)
			}
			return nil
		}}
		token := blob.FirstPageToken
		for token != nil {
			page, next, err := s.bucket.ListPage(ctx, token, pageSize, options)
			if err != nil {
				yield(Info{}, s.errorOf(kind, err))
				return
			}
			for _, o := range page {
				if o.Key <= after {
					continue
				}
				if !yield(Info{Key: o.Key, Size: o.Size, Time: o.ModTime}, nil) {
					return
				}
			}
			if token = next; len(next) == 0 {
				token = nil
			}
		}
	}
}
