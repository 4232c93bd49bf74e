package attach

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/attached"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/oci"
	"lighter/hub/pull"
	"lighter/registries/push"
)

// maxFound bounds the attached indexes of one image that are looked at: those that claim the newest
// versions.
const maxFound = 64

// work is the work on the index of an image.
type work struct {
	*Service
	image  *catalog.Sourced
	layers []oci.Layer
	job    *jobs.Running
	from   *pull.Source
	to     *push.Destination
	dir    string // for temporary files

	subject  v1.Descriptor // the image's manifest
	contents attached.Contents
	blobs    []push.Blob // of the contents
}

// found is an index that is attached already.
type found struct {
	artifact v1.Descriptor
	contents *attached.Contents
	isSigned bool // all of the hub's keys have signed it
}

// attach sees to it that an image has the index with its current layout. It returns the digest of
// the artifact.
func (s *Service) attach(ctx context.Context, i *catalog.Sourced, j *jobs.Running) (artifact string, err error) {
	w := &work{Service: s, image: i, job: j}
	if w.from, w.to, err = s.Registries.Attachable(ctx, i.Source); err != nil {
		return "", err
	}
	if err := w.read(ctx); err != nil {
		return "", err
	}
	old, err := w.find(ctx)
	if err != nil {
		return "", err
	}
	if w.dir, err = s.TempDir("attach"); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(w.dir)) }()
	if err := w.make(ctx, old); err != nil {
		return "", err
	}
	if len(old) > 0 && old[0].isSigned && w.contents.Equal(old[0].contents) {
		return old[0].artifact.Digest.String(), nil
	}
	d, err := w.push(ctx)
	if err != nil {
		return "", err
	}
	s.Log.Info("index attached", "image", i.Source, "digest", i.Digest, "tree", i.Tree.Short(),
		"version", w.contents.Version, "packs", len(w.contents.Packs))
	for _, f := range old { // they stay where a registry deletes nothing; the newest version counts
		if err := w.to.Delete(ctx, f.artifact, w.subject); err != nil {
			s.Log.Warn("an older index stays attached", "image", i.Source, "digest", i.Digest, "err", err)
		}
	}
	return d.String(), nil
}

// read reads the image's manifest and its config.
func (w *work) read(ctx context.Context) error {
	m, err := w.from.Manifest(ctx, w.image.Digest)
	if isNotFound(err) {
		err = fmt.Errorf("%w: %w", pull.ErrGone, err)
	}
	var read *oci.Image
	if err == nil {
		read, err = oci.Read(ctx, w.from, w.image.Digest)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", pull.ErrSource, err)
	}
	w.layers = read.Layers
	w.subject = v1.Descriptor{MediaType: m.MediaType, Digest: digest.Digest(m.Digest), Size: int64(len(m.Bytes))}
	w.contents = attached.Contents{Manifest: w.subject.Digest, Chain: w.image.Chain, Tree: w.image.Tree,
		Format: index.Format, Version: 1}
	if top := w.layers[len(w.layers)-1].Chain; top != w.image.Chain || len(w.layers) > attached.MaxLayers {
		return fmt.Errorf("the image has %d layers and the chain %s: want at most %d, and %s", len(w.layers), top,
			attached.MaxLayers, w.image.Chain)
	}
	return nil
}

// isNotFound reports whether a registry has answered 404.
func isNotFound(err error) bool {
	var failed *transport.Error
	return errors.As(err, &failed) && failed.StatusCode == http.StatusNotFound
}

// find returns the indexes of the image that one of the hub's keys has signed, the newest version
// first. The new contents get a version above those of all keys: nodes that believe several keys
// take the highest one.
func (w *work) find(ctx context.Context) (all []found, err error) {
	listed, err := w.from.Referrers(ctx, w.subject.Digest, attached.ArtifactType)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", pull.ErrSource, err)
	}
	attached.NewestFirst(listed)
	for _, d := range listed[:min(len(listed), maxFound)] {
		c, signers, err := w.open(ctx, d)
		switch {
		case err == nil:
			w.contents.Version = attached.After(w.contents.Version, c)
			if isOurs, isSigned := attached.HaveSigned(signers, w.Keys); isOurs {
				all = append(all, found{d, c, isSigned})
			}
		// Something else. A list under a tag may name what was deleted.
		case errors.As(err, new(*attached.RefusedError)), isNotFound(err), errors.Is(err, pull.ErrMediaType):
		default:
			return nil, fmt.Errorf("%w: attached index %s: %w", pull.ErrSource, d.Digest, err)
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(b.contents.Version, a.contents.Version) })
	return all, nil
}

// open returns the contents of an attached index, and who has signed them.
func (w *work) open(ctx context.Context, d v1.Descriptor) (c *attached.Contents, by []ed25519.PublicKey, err error) {
	m, err := w.from.Manifest(ctx, d.Digest.String())
	if err != nil {
		return nil, nil, err
	}
	a := attached.Artifact{Manifest: m.Bytes, Subject: w.subject.Digest, Image: w.subject.Digest, Chain: w.image.Chain,
		Envelope: func(d v1.Descriptor) ([]byte, error) { return w.from.Config(ctx, d) }} // any small blob
	c, _, err = a.Open(func(envelope []byte) []ed25519.PublicKey {
		by = attached.Signers(envelope)
		return by
	})
	return c, by, err
}

// push signs the contents, and pushes the artifact.
func (w *work) push(ctx context.Context) (digest.Digest, error) {
	envelope, err := attached.Seal(&w.contents, w.Keys)
	if err != nil {
		return "", err
	}
	manifest, err := attached.Manifest(&w.contents, envelope, w.subject)
	if err != nil {
		return "", err
	}
	_, config := attached.Config()
	all := append(w.blobs, push.Bytes(v1.MediaTypeEmptyJSON, config), push.Bytes(attached.MediaTypeEnvelope, envelope))
	d := push.Bytes(v1.MediaTypeImageManifest, manifest).Descriptor
	if err = push.Blobs(ctx, w.to.Blob, all); err == nil {
		err = w.to.Manifest(ctx, d, manifest)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", pull.ErrSource, err)
	}
	return d.Digest, nil
}
