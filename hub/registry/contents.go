package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/opencontainers/go-digest"
)

// Paths of the library's storage layout, version 2.
const (
	repositoriesPath = "/docker/registry/v2/repositories"
	blobsPath        = "/docker/registry/v2/blobs"
)

var (
	// linkPath matches the files of a repository that name a blob or manifest. Its groups are the
	// repository, the kind of file, and the algorithm and hexadecimal digits of the digest.
	linkPath = regexp.MustCompile(`^` + repositoriesPath +
		`/(.+)/(_layers|_manifests/revisions|_manifests/tags/[^/]+/index)/([^/]+)/([^/]+)/link$`)
	// tagPath matches the file that has the digest of a tag. Its groups are the repository and the
	// tag.
	tagPath = regexp.MustCompile(`^` + repositoriesPath + `/(.+)/_manifests/tags/([^/]+)/current/link$`)
	// dataPath matches the file with the bytes of a blob or manifest. Its groups are the algorithm
	// and hexadecimal digits of the digest.
	dataPath = regexp.MustCompile(`^` + blobsPath + `/([^/]+)/[^/]+/([^/]+)/data$`)
)

// Contents has the tags, manifests and blobs that the storage's files of a repository name.
type Contents struct {
	Repository
	Tags   []string
	Tagged []string            // digests of the manifests that tags point to
	Err    error               // why some of the files could not be read; the contents are not complete then
	links  map[string][]string // the files that linkPath matches, by digest
}

// Linked returns the digests of the repository's blobs and manifests.
func (c *Contents) Linked() (digests []string) {
	for digest := range c.links {
		digests = append(digests, digest)
	}
	return digests
}

// Manifests returns the digests of the repository's manifests and indexes.
func (c *Contents) Manifests() (digests []string) {
	for digest, links := range c.links {
		if slices.ContainsFunc(links, isManifestLink) {
			digests = append(digests, digest)
		}
	}
	return digests
}

// ManifestBytes returns the bytes of a manifest or index of the repository. If the contents have a
// link to it, this is one read of the storage, where Repository.Manifest needs three. The error
// wraps ErrNotFound if the manifest does not exist.
func (c *Contents) ManifestBytes(ctx context.Context, manifest string) ([]byte, error) {
	if id, err := digest.Parse(manifest); err == nil && slices.ContainsFunc(c.links[manifest], isManifestLink) {
		b, err := c.registry.driver.GetContent(ctx, dataFile(id))
		if err == nil && id == id.Algorithm().FromBytes(b) {
			return b, nil
		}
	}
	m, err := c.Manifest(ctx, manifest)
	return m.Bytes, err
}

func isManifestLink(link string) bool { return strings.Contains(link, "/_manifests/revisions/") }

// Links returns the links of the repository to a blob or manifest.
func (c *Contents) Links(digest string) []string { return c.links[digest] }

// Unlink removes links that Contents.Links has returned, of any repositories. The bytes of the
// blobs stay.
func (r *Registry) Unlink(ctx context.Context, links []string) error {
	if err := r.deleteFiles(ctx, repositoriesPath, links); err != nil {
		return fmt.Errorf("remove links to blobs: %w", err)
	}
	return nil
}

// deleteFiles deletes files below a directory, each of which is alone in its own directory. It is
// no error if a file does not exist.
func (r *Registry) deleteFiles(ctx context.Context, dir string, files []string) error {
	if len(files) == 0 {
		return nil
	}
	if r.bucket != nil {
		return unavailable(r.bucket.DeleteFiles(ctx, dir, files))
	}
	for _, file := range files {
		err := ctx.Err() // the right to delete may have ended
		if err == nil {
			err = r.driver.Delete(ctx, path.Dir(file))
		}
		if err != nil && !errors.Is(mapNotFound(err), ErrNotFound) {
			return unavailable(err)
		}
	}
	return nil
}

// Each calls fn with each repository of the storage, even if some of its files cannot be read
// (Contents.Err). Changes that are made meanwhile may be missed.
func (r *Registry) Each(ctx context.Context, fn func(*Contents) error) error {
	var now *Contents
	begin := func(name string) error { // the files of a repository follow each other
		if now != nil && now.name == name {
			return nil
		}
		before := now
		now = &Contents{Repository: r.Repository(name), links: map[string][]string{}}
		if before == nil {
			return nil
		}
		return fn(before)
	}
	failed := func(file string, err error) error {
		name, _, _ := strings.Cut(strings.TrimPrefix(file, repositoriesPath+"/"), "/_")
		if file == repositoriesPath {
			return err
		}
		if err := begin(name); err != nil {
			return err
		}
		now.Err = cmp.Or(now.Err, err)
		return nil
	}
	err := r.walk(ctx, repositoriesPath, failed, func(info driver.FileInfo) error {
		file := info.Path()
		if match := linkPath.FindStringSubmatch(file); match != nil {
			if err := begin(match[1]); err != nil {
				return err
			}
			digest := match[3] + ":" + match[4]
			now.links[digest] = append(now.links[digest], file)
			return nil
		}
		tag := tagPath.FindStringSubmatch(file)
		if tag == nil {
			return nil
		}
		if err := begin(tag[1]); err != nil {
			return err
		}
		b, err := r.driver.GetContent(ctx, file)
		if errors.Is(mapNotFound(err), ErrNotFound) {
			return nil
		}
		now.Tags = append(now.Tags, tag[2])
		if err != nil {
			return failed(file, unavailable(err))
		}
		now.Tagged = append(now.Tagged, string(b))
		return nil
	})
	if err == nil && now != nil {
		err = fn(now)
	}
	return err
}

// EachBlob calls fn with the digest and the size in bytes of each blob and manifest that is stored.
// Blobs may be deleted meanwhile.
func (r *Registry) EachBlob(ctx context.Context, fn func(digest string, size int64) error) error {
	failed := func(_ string, err error) error { return err }
	return r.walk(ctx, blobsPath, failed, func(file driver.FileInfo) error {
		if match := dataPath.FindStringSubmatch(file.Path()); match != nil {
			return fn(match[1]+":"+match[2], file.Size())
		}
		return nil
	})
}

// walk calls fn with the files below dir, except the files of uploads. The files of a directory
// follow one another. It calls failed with files and directories that cannot be read; an error of
// failed ends the walk.
func (r *Registry) walk(
	ctx context.Context, dir string, failed func(file string, err error) error, fn func(driver.FileInfo) error,
) error {
	if r.bucket != nil {
		return r.walkBucket(ctx, dir, failed, fn)
	}
	below, err := r.driver.List(ctx, dir)
	if errors.Is(mapNotFound(err), ErrNotFound) { // nothing was ever stored, or it was just deleted
		return nil
	}
	if err != nil {
		return failed(dir, unavailable(err))
	}
	slices.Sort(below)
	for _, file := range below {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if path.Base(file) == "_uploads" {
			continue
		}
		info, err := r.driver.Stat(ctx, file)
		switch {
		case errors.Is(mapNotFound(err), ErrNotFound): // it was just deleted
			err = nil
		case err != nil:
			err = failed(file, unavailable(err))
		case info.IsDir():
			err = r.walk(ctx, file, failed, fn)
		default:
			err = fn(info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// walkBucket is walk on S3, where a request lists many files, and no directory fails alone.
func (r *Registry) walkBucket(
	ctx context.Context, dir string, failed func(file string, err error) error, fn func(driver.FileInfo) error,
) error {
	var fnErr error // the library's error does not wrap it
	err := r.driver.Walk(ctx, dir, func(file driver.FileInfo) error {
		switch {
		case file.IsDir() && path.Base(file.Path()) == "_uploads":
			return driver.ErrSkipDir
		case !file.IsDir():
			fnErr = fn(file)
		}
		return fnErr
	})
	switch {
	case fnErr != nil:
		return fnErr
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil, errors.Is(mapNotFound(err), ErrNotFound): // nothing was ever stored
		return nil
	}
	return failed(dir, unavailable(err))
}
