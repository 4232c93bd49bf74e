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

// Local is an image, or an index of several, on this machine.
type Local struct {
	// Name is what the source itself calls the image, or "".
	Name  string
	image v1.Image
	index v1.ImageIndex
}

// refNameAnnotation is where an OCI layout keeps an image's tag.
const refNameAnnotation = "org.opencontainers.image.ref.name"

// OpenLocal opens oci:DIR[:TAG] or docker-archive:FILE.
func OpenLocal(source string) (*Local, error) {
	kind, where, _ := strings.Cut(source, ":")
	switch {
	case kind == "oci" && where != "":
		dir, tag, _ := strings.Cut(where, ":")
		return openLayout(dir, tag)
	case kind == "docker-archive" && where != "":
		return openArchive(where)
	}
	return nil, fmt.Errorf("%q is not a source: want docker://HOST/REPO:TAG, oci:DIR[:TAG] or docker-archive:FILE", source)
}

func openLayout(dir, tag string) (*Local, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("%s is not an OCI layout: %w", dir, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("read the OCI layout %s: %w", dir, err)
	}
	var found []v1.Descriptor
	var tags []string
	for _, d := range manifest.Manifests {
		if tag == "" || d.Annotations[refNameAnnotation] == tag {
			found = append(found, d)
		}
		tags = append(tags, d.Annotations[refNameAnnotation])
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("%s has no image %q; it has: %s", dir, tag, strings.Join(tags, " "))
	case len(found) > 1:
		return nil, fmt.Errorf("%s has several images: choose one of %s with oci:%s:TAG", dir, strings.Join(tags, " "), dir)
	}
	l := &Local{}
	if found[0].MediaType.IsIndex() {
		l.index, err = index.ImageIndex(found[0].Digest)
	} else {
		l.image, err = index.Image(found[0].Digest)
	}
	if err != nil {
		return nil, fmt.Errorf("read the OCI layout %s: %w", dir, err)
	}
	return l, nil
}

func openArchive(file string) (*Local, error) {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	if err != nil {
		return nil, fmt.Errorf("%s is not a docker archive: %w", file, err)
	}
	if len(manifest) != 1 {
		return nil, fmt.Errorf("%s holds %d images: save one alone", file, len(manifest))
	}
	image, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		return nil, fmt.Errorf("%s is not a docker archive: %w", file, err)
	}
	l := &Local{image: image}
	if tags := manifest[0].RepoTags; len(tags) > 0 {
		l.Name = tags[0]
	}
	return l, nil
}

// Target is a registry to push to.
type Target struct {
	Host       string // HOST[:PORT]
	Repository string
	PlainHTTP  bool
	Transport  http.RoundTripper
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

// Push pushes the image by its digest, without a tag. each is told of the bytes
// that have been pushed, and of how many there are.
func (l *Local) Push(ctx context.Context, to Target, each func(done, total int64)) error {
	var options []name.Option
	if to.PlainHTTP {
		options = append(options, name.Insecure)
	}
	digest, err := l.Digest()
	if err != nil {
		return fmt.Errorf("push to %s: %w", to.Host, err)
	}
	ref, err := name.NewDigest(to.Host+"/"+to.Repository+"@"+digest, options...)
	if err != nil {
		return fmt.Errorf("push to %s: %w", to.Host, err)
	}
	updates := make(chan v1.Update, 16)
	told := make(chan struct{})
	go func() {
		defer close(told)
		for u := range updates {
			if u.Error == nil {
				each(u.Complete, u.Total)
			}
		}
	}()
	remoteOptions := []remote.Option{remote.WithContext(ctx), remote.WithTransport(to.Transport), remote.WithProgress(updates), remote.WithJobs(2)}
	if l.index != nil {
		err = remote.WriteIndex(ref, l.index, remoteOptions...)
	} else {
		err = remote.Write(ref, l.image, remoteOptions...)
	}
	<-told // the library closes updates
	if err != nil {
		return fmt.Errorf("push to %s: %w", ref, err)
	}
	return nil
}
