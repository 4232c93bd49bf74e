package attachment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"lighter/format/attached"
)

// uploadsAtOnce is how many blobs are pushed at a time.
const uploadsAtOnce = 4

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
		err = m.pushBlobs(ctx, to)
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

func (m *Made) pushBlobs(ctx context.Context, to Target) error {
	config, text := attached.Config()
	envelope := v1.Descriptor{MediaType: attached.MediaTypeEnvelope, Digest: digest.FromBytes(m.envelope),
		Size: int64(len(m.envelope))}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(uploadsAtOnce)
	for d, b := range map[*v1.Descriptor][]byte{&config: text, &envelope: m.envelope} {
		group.Go(func() error {
			return to.Blob(ctx, *d, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
		})
	}
	blobs := m.Contents.Blobs()
	slices.SortFunc(blobs, func(a, b v1.Descriptor) int { return bytes.Compare([]byte(a.Digest), []byte(b.Digest)) })
	for _, d := range slices.CompactFunc(blobs, func(a, b v1.Descriptor) bool { return a.Digest == b.Digest }) {
		group.Go(func() error {
			return to.Blob(ctx, d, func() (io.ReadCloser, error) { return os.Open(path(m.dir, d.Digest)) })
		})
	}
	return group.Wait()
}

// Remove removes attached indexes of an image. It goes on after an error, and returns all of them.
func Remove(ctx context.Context, to Target, subject v1.Descriptor, some []Found) (err error) {
	for _, f := range some {
		err = errors.Join(err, to.Delete(ctx, f.Artifact, subject))
	}
	return err
}
