package blobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/catalog"
	"lighter/hub/images"
	"lighter/hub/oci"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/hub/upstream"
	"lighter/wire"
)

func (r *run) collect(ctx context.Context, progress *report.Progress) error {
	now, err := r.config.Catalog.Blobs.Now(ctx)
	if err != nil {
		return err
	}
	r.before = now.Add(-r.Delay)
	if !r.dry {
		if err := r.config.Registry.EndUploads(ctx, uploadAge); err != nil { // the next run tries again
			r.config.Log.Warn("cannot delete unfinished uploads", "err", err)
		}
	}
	if err := r.readCatalog(ctx); err != nil {
		return err
	}
	// Links are swept after all repositories are marked, as blobs are. So if a mark fails, neither
	// a blob nor a link to it is deleted.
	var repositories []*repository
	unlisted := map[string]bool{} // repositories of images that the registry does not list
	for name := range r.images {
		unlisted[name] = true
	}
	err = r.config.Registry.Each(ctx, func(c *registry.Contents) error {
		repositories = append(repositories, newRepository(c))
		delete(unlisted, c.Name())
		return c.Err // what cannot be read may name any blob
	})
	if err != nil {
		return fmt.Errorf("list the registry: %w", err)
	}
	for name := range unlisted {
		repositories = append(repositories, newRepository(
			&registry.Contents{Repository: r.config.Registry.Repository(name)}))
	}
	marked := progress.Step("mark", "repositories", int64(len(repositories)))
	for _, one := range repositories {
		if err := r.mark(ctx, one); err != nil {
			return fmt.Errorf("repository %s: %w", one.Name(), err)
		}
		marked.Add(1)
	}
	if 2*r.lost > r.complete {
		return fmt.Errorf("the registry lacks the manifests of %d of %d images, so its blobs stay: perhaps its files "+
			"are not mounted, or are those of another hub: run lighter fsck", r.lost, r.complete)
	}
	if r.Marked != nil {
		r.Marked()
	}
	if r.dry {
		return r.sweep(ctx, repositories, progress)
	}
	// A backup that began before the mark may have a catalog that names unmarked blobs. A backup
	// that begins now names only blobs that are marked or were pushed since.
	held, err := r.config.Catalog.Claims.IsHeld(ctx)
	if err != nil {
		return err
	}
	if held {
		r.config.Log.Info("the registry's blobs stay until the next collection: a backup is being made")
		return nil
	}
	if err := r.sweep(ctx, repositories, progress); err != nil {
		return err
	}
	return r.config.Catalog.Blobs.Forget(ctx, r.before)
}

// sweep deletes what is not marked.
func (r *run) sweep(ctx context.Context, repositories []*repository, progress *report.Progress) error {
	swept := progress.Step("sweep", "repositories", int64(len(repositories)))
	for _, one := range repositories {
		if err := r.sweepLinks(ctx, one); err != nil {
			return err
		}
		swept.Add(1)
	}
	return r.sweepBlobs(ctx)
}

// repository is a repository of the registry, with the digests that its tags, images and recent
// manifests name.
type repository struct {
	*registry.Contents
	live map[string]bool
	lost map[string]bool // manifests in live that the repository does not have
}

func newRepository(c *registry.Contents) *repository {
	return &repository{Contents: c, live: map[string]bool{}, lost: map[string]bool{}}
}

// readCatalog reads the images, what clients rely on, and the layers that other registries have. It
// records these layers for images that were added before the catalog recorded them.
func (r *run) readCatalog(ctx context.Context) error {
	all, err := r.config.Catalog.Images(ctx, "")
	if err != nil {
		return err
	}
	for _, image := range all {
		if ref, err := wire.ParseName(image.Name); err == nil {
			r.images[ref.Repository] = append(r.images[ref.Repository], image)
		}
	}
	// Images are read before: an image that was removed since then is marked by its name.
	recent, err := r.config.Catalog.Blobs.Touched(ctx, r.before)
	if err != nil {
		return err
	}
	for _, digest := range recent {
		r.recent[digest] = true
	}
	known, err := r.config.Catalog.Blobs.AllUpstreams(ctx)
	if err != nil {
		return err
	}
	for _, l := range known {
		r.addUpstream(l.Name, l.Digest)
	}
	if r.config.Keep != images.KeepUntilUpstream {
		return nil
	}
	sources, err := r.config.Catalog.Blobs.SourceLayers(ctx)
	if err != nil {
		return err
	}
	missing := map[string][]catalog.Upstream{}
	for _, l := range sources {
		ref, err := wire.ParseName(l.Name)
		if err == nil && !r.upstream[ref.Repository][l.Digest] {
			missing[ref.Repository] = append(missing[ref.Repository], l.Upstream)
		}
	}
	for name, layers := range missing {
		if !r.dry {
			if err := r.config.Catalog.AddUpstreams(ctx, name, layers); err != nil {
				return err
			}
		}
		for _, l := range layers {
			r.addUpstream(name, l.Digest)
		}
	}
	return nil
}

func (r *run) addUpstream(repository, digest string) {
	if r.upstream[repository] == nil {
		r.upstream[repository] = map[string]bool{}
	}
	r.upstream[repository][digest] = true
}

// mark marks what the tags, images and recent manifests of a repository name.
func (r *run) mark(ctx context.Context, in *repository) error {
	roots := slices.Clone(in.Tagged)
	for _, image := range r.images[in.Name()] {
		roots = append(roots, image.Root, image.Digest)
	}
	for _, manifest := range in.Manifests() {
		if r.recent[manifest] {
			roots = append(roots, manifest)
		}
	}
	for _, root := range roots {
		if err := r.markManifest(ctx, in, root); err != nil {
			return err
		}
	}
	for _, image := range r.images[in.Name()] {
		if image.State != wire.StateReady && image.State != wire.StateStored {
			continue
		}
		r.complete++
		if !in.lost[image.Root] && !in.lost[image.Digest] {
			continue
		}
		if err := r.markLost(ctx, in, image); err != nil {
			return err
		}
	}
	return nil
}

// markLost marks the blobs of an image whose manifest or index is lost: the blobs that the catalog
// knows of the image, and all that its repository links to, because the manifest may have named any
// of them.
func (r *run) markLost(ctx context.Context, in *repository, image catalog.Image) error {
	blobs, exists, err := r.config.Catalog.Blobs.OfImage(ctx, image.N, image.State)
	if err != nil || !exists { // it was just removed
		return err
	}
	r.lost++
	r.config.Log.Warn("a manifest of an image is lost: nothing is deleted from its repository; run lighter fsck",
		"image", image.Name, "root", image.Root, "manifest", image.Digest)
	for _, digest := range append(blobs, in.Linked()...) {
		in.live[digest], r.live[digest], r.needed[digest] = true, true, true
	}
	return nil
}

// markManifest marks a manifest and what it names. An error means that the mark is not complete.
func (r *run) markManifest(ctx context.Context, in *repository, digest string) error {
	if in.live[digest] {
		return nil
	}
	in.live[digest], r.live[digest], r.needed[digest] = true, true, true
	b, err := in.ManifestBytes(ctx, digest)
	if errors.Is(err, registry.ErrNotFound) { // it is still being copied, was deleted, or is lost
		in.lost[digest] = true
		return nil
	}
	if err != nil {
		return err
	}
	var parsed struct {
		Config    v1.Descriptor   `json:"config"`
		Layers    []v1.Descriptor `json:"layers"`
		Manifests []v1.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(b, &parsed); err != nil {
		return fmt.Errorf("parse manifest %s: %w", digest, err)
	}
	for _, d := range parsed.Manifests {
		if err := r.markManifest(ctx, in, d.Digest.String()); err != nil {
			return err
		}
	}
	ingested := r.isIngested(in.Name(), digest)
	for _, d := range append(parsed.Layers, parsed.Config) {
		digest := d.Digest.String()
		in.live[digest], r.live[digest] = true, true
		kind := oci.KindOf(d.MediaType)
		if ingested && (kind == oci.Tar || kind == oci.CompressedTar) && r.mayRelease(in.Name(), digest) {
			r.layers[digest] = append(r.layers[digest], in.Name())
		} else {
			r.needed[digest] = true
		}
	}
	return nil
}

// isIngested reports whether a repository has images with this manifest, and all of them are ready.
func (r *run) isIngested(repository, digest string) bool {
	ready := false
	for _, image := range r.images[repository] {
		if image.Digest == digest {
			if ready = image.State == wire.StateReady; !ready {
				return false
			}
		}
	}
	return ready
}

// mayRelease reports whether a layer of an ingested image need not be stored for a repository.
func (r *run) mayRelease(repository, layer string) bool {
	switch r.config.Keep {
	case images.KeepNever:
		return true
	case images.KeepUntilUpstream:
		return r.upstream[repository][layer]
	}
	return false
}

// sweepLinks removes a repository's links to blobs that nothing in the repository names. It makes
// the catalog forget which registries have the layers that nothing in the repository names.
func (r *run) sweepLinks(ctx context.Context, in *repository) error {
	return r.delete(ctx, func(found func(unneeded) error) error {
		upstream := r.upstream[in.Name()]
		digests := slices.AppendSeq(in.Linked(), maps.Keys(upstream))
		slices.Sort(digests)
		for _, digest := range slices.Compact(digests) {
			if in.live[digest] {
				continue
			}
			one := unneeded{digest: digest, links: in.Links(digest)}
			if upstream[digest] {
				one.upstream = &catalog.RepositoryLayer{Name: in.Name(), Upstream: catalog.Upstream{Digest: digest}}
			}
			if err := found(one); err != nil {
				return err
			}
		}
		return nil
	})
}

// sweepBlobs deletes the blobs that nothing names, and the layers that need not be stored.
func (r *run) sweepBlobs(ctx context.Context) error {
	var asked []unneeded
	err := r.delete(ctx, func(found func(unneeded) error) error {
		return r.config.Registry.EachBlob(ctx, func(digest string, size int64) error {
			layer := unneeded{digest: digest, stored: &r.result.Released, size: size}
			switch {
			case !r.live[digest]:
				return found(unneeded{digest: digest, stored: &r.result.Blobs, size: size})
			case r.needed[digest]:
				return nil
			case r.config.Keep == images.KeepUntilUpstream && !r.dry:
				asked = append(asked, layer)
				return nil
			}
			return found(layer)
		})
	})
	if err != nil {
		return err
	}
	return r.delete(ctx, func(found func(unneeded) error) error { return r.release(ctx, asked, found) })
}

// release finds the layers that other registries still have, for all repositories that name the
// layer. It asks them for AskTime at most.
func (r *run) release(ctx context.Context, layers []unneeded, found func(unneeded) error) error {
	rand.Shuffle(len(layers), func(i, j int) { layers[i], layers[j] = layers[j], layers[i] })
	asking, cancel := context.WithTimeout(ctx, r.AskTime)
	defer cancel()
	survey := r.config.Upstream.Survey()
	kept, first := 0, error(nil)
	for i, layer := range layers {
		err := r.isElsewhere(asking, survey, layer.digest)
		if asking.Err() != nil {
			r.config.Log.Info("no time to ask other registries for all layers: the next collection asks for the rest",
				"layers", len(layers)-i)
			break
		}
		if err != nil {
			kept, first = kept+1, cmp.Or(first, err)
		} else if err := found(layer); err != nil {
			return err
		}
	}
	if kept > 0 {
		r.config.Log.Info("layers stay stored: they cannot be read from the registries that they came from",
			"layers", kept, "err", first)
	}
	return ctx.Err()
}

// isElsewhere returns an error unless the other registries still have a layer, for all repositories
// that name it.
func (r *run) isElsewhere(ctx context.Context, survey *upstream.Survey, layer string) error {
	for _, repository := range r.layers[layer] {
		if err := survey.Find(ctx, repository, layer); err != nil {
			return err
		}
	}
	return nil
}
