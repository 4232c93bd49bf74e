package registry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const (
	// refNameAnnotation is where an OCI layout keeps an image's tag.
	refNameAnnotation = "org.opencontainers.image.ref.name"
	// pushJobs is how many blobs are pushed at a time.
	pushJobs = 2
	// progressBuffer is how many reports of progress may wait.
	progressBuffer = 16
)

// Local is an image on this machine, or an index of several images.
type Local struct {
	// Name is the image's name in its source, or empty.
	Name string

	from   string
	image  v1.Image
	index  v1.ImageIndex // if not nil, image is nil
	stored v1.Hash       // the digest that the source has; zero: it has none
}

// OpenLocal opens oci:DIR[:TAG] or docker-archive:FILE.
func OpenLocal(source string) (*Local, error) {
	kind, path, _ := strings.Cut(source, ":")
	switch {
	case kind == "oci" && path != "":
		dir, tag, _ := strings.Cut(path, ":")
		return openLayout(dir, tag)
	case kind == "docker-archive" && path != "":
		return openArchive(path)
	}
	return nil, fmt.Errorf("%q is not a source: want docker://HOST/REPO:TAG, oci:DIR[:TAG] or docker-archive:FILE",
		source)
}

func openLayout(dir, tag string) (*Local, error) {
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("%s is not an OCI layout: %w", dir, err)
	}
	found, err := findImage(root, dir, tag)
	if err != nil {
		return nil, err
	}
	l := &Local{from: "oci:" + dir, stored: found.Digest}
	if found.MediaType.IsIndex() {
		l.index, err = root.ImageIndex(found.Digest)
	} else {
		l.image, err = root.Image(found.Digest)
	}
	if err != nil {
		return nil, fmt.Errorf("read the OCI layout %s: %w", dir, err)
	}
	return l, nil
}

// findImage returns the image of the layout in dir that has the tag; without a tag, the only image.
func findImage(root v1.ImageIndex, dir, tag string) (found v1.Descriptor, err error) {
	manifest, err := root.IndexManifest()
	if err != nil {
		return found, fmt.Errorf("read the OCI layout %s: %w", dir, err)
	}
	matches := 0
	var tags []string
	for _, d := range manifest.Manifests {
		if tag == "" || d.Annotations[refNameAnnotation] == tag {
			found = d
			matches++
		}
		tags = append(tags, d.Annotations[refNameAnnotation])
	}
	switch {
	case matches == 0:
		return found, fmt.Errorf("%s has no image %q; it has: %s", dir, tag, strings.Join(tags, " "))
	case matches > 1:
		return found, fmt.Errorf("%s has several images: choose one of %s with oci:%s:TAG",
			dir, strings.Join(tags, " "), dir)
	}
	return found, nil
}

func openArchive(file string) (*Local, error) {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	if err != nil {
		return nil, fmt.Errorf("%s is not a docker archive: %w", file, err)
	}
	if len(manifest) != 1 {
		return nil, fmt.Errorf("%s holds %d images: save a single image", file, len(manifest))
	}
	image, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		return nil, fmt.Errorf("%s is not a docker archive: %w", file, err)
	}
	l := &Local{from: "docker-archive:" + file, image: image}
	if tags := manifest[0].RepoTags; len(tags) > 0 {
		l.Name = tags[0]
	}
	return l, nil
}

// Digest returns the digest of the image, or of the index.
func (l *Local) Digest() (string, error) {
	var of interface{ Digest() (v1.Hash, error) } = l.image
	if l.index != nil {
		of = l.index
	}
	digest, err := of.Digest()
	return digest.String(), err
}

// Target is a repository to push to.
type Target struct {
	Host       string // HOST[:PORT]
	Repository string
	PlainHTTP  bool
	Transport  http.RoundTripper
}

// Push pushes the image by its digest, without a tag. report is called with the number of bytes
// pushed so far, and the total.
func (l *Local) Push(ctx context.Context, to Target, report func(done, total int64)) error {
	digest, err := l.Digest()
	if err != nil {
		return fmt.Errorf("push to %s: %w", to.Host, err)
	}
	var options []name.Option
	if to.PlainHTTP {
		options = append(options, name.Insecure)
	}
	ref, err := name.NewDigest(to.Host+"/"+to.Repository+"@"+digest, options...)
	if err != nil {
		return fmt.Errorf("push to %s: %w", to.Host, err)
	}
	updates := make(chan v1.Update, progressBuffer)
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		for u := range updates {
			if u.Error == nil {
				report(u.Complete, u.Total)
			}
		}
	}()
	err = l.write(ref, remote.WithContext(ctx), remote.WithTransport(to.Transport), remote.WithProgress(updates),
		remote.WithJobs(pushJobs))
	<-reported // the library closes updates
	if err != nil {
		return fmt.Errorf("push to %s: %w", ref, err)
	}
	return nil
}

func (l *Local) write(ref name.Reference, options ...remote.Option) error {
	if l.index != nil {
		return remote.WriteIndex(ref, l.index, options...)
	}
	return remote.Write(ref, l.image, options...)
}
