package attachment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/attached"
	"lighter/registries/push"
)

// Target is a repository that is pushed to (registry.Destination).
type Target interface {
	Blob(ctx context.Context, d v1.Descriptor, open func() (io.ReadCloser, error)) error
	// Manifest pushes a manifest by its digest, Name also by the target's tag.
	Manifest(ctx context.Context, d v1.Descriptor, b []byte) error
	Name(ctx context.Context, d v1.Descriptor, b []byte) error
	Delete(ctx context.Context, d, subject v1.Descriptor) error
}

// Attach pushes the artifact to the repository of its image, whose manifest is subject. Blobs that
// the repository has are not sent again. The registry's referrers API then lists the artifact, or,
// where a registry has none, the index under the tag that takes its place. It returns the
// artifact's digest.
func (m *Made) Attach(ctx context.Context, to Target, subject v1.Descriptor) (digest.Digest, error) {
	return m.push(ctx, to, subject, to.Manifest)
}

// Name pushes the artifact to another repository than the image's, under the target's tag, which
// should be attached.ChainTag. It returns the artifact's digest.
func (m *Made) Name(ctx context.Context, to Target) (digest.Digest, error) {
	return m.push(ctx, to, v1.Descriptor{}, to.Name)
}

func (m *Made) push(ctx context.Context, to Target, subject v1.Descriptor,
	publish func(context.Context, v1.Descriptor, []byte) error) (digest.Digest, error) {
	manifest, err := attached.Manifest(&m.Contents, m.envelope, subject)
	if err == nil {
		err = push.Blobs(ctx, to.Blob, m.blobs())
	}
	d := v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: digest.FromBytes(manifest),
		Size: int64(len(manifest))}
	if err == nil {
		err = publish(ctx, d, manifest)
	}
	if err != nil {
		return "", fmt.Errorf("push an index: %w", err)
	}
	return d.Digest, nil
}

// blobs returns what the artifact's manifest names.
func (m *Made) blobs() []push.Blob {
	_, config := attached.Config()
	all := []push.Blob{push.Bytes(v1.MediaTypeEmptyJSON, config), push.Bytes(attached.MediaTypeEnvelope, m.envelope)}
	for _, d := range m.Contents.Blobs() {
		all = append(all, push.Blob{Descriptor: d,
			Open: func() (io.ReadCloser, error) { return os.Open(push.FilePath(m.dir, d.Digest)) }})
	}
	return all
}

// Remove removes attached indexes of an image, and returns those that it has removed. It goes on
// after an error, and returns all of them.
func Remove(ctx context.Context, to Target, subject v1.Descriptor, some []Found) (removed []Found, err error) {
	for _, f := range some {
		if failed := to.Delete(ctx, f.Artifact, subject); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		removed = append(removed, f)
	}
	return removed, err
}
