package blobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	"github.com/containerd/containerd/v2/core/content"
	contentproxy "github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/core/events"
	eventsproxy "github.com/containerd/containerd/v2/core/events/proxy"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"

	"lighter/format/chunk"
	"lighter/node/mount"
)

// store is containerd, as this package uses it.
type store struct {
	content    content.Store
	images     imagesapi.ImagesClient
	namespaces namespacesapi.NamespacesClient
	plugins    introspectionapi.IntrospectionClient
	events     events.Subscriber
}

func newStore(conn *grpc.ClientConn) store {
	return store{contentproxy.NewContentStore(conn), imagesapi.NewImagesClient(conn),
		namespacesapi.NewNamespacesClient(conn), introspectionapi.NewIntrospectionClient(conn),
		eventsproxy.NewRemoteEvents(conn)}
}

// contents asks containerd where its content store is.
func (s store) contents(ctx context.Context) (contents, error) {
	const pluginType, id = "io.containerd.content.v1", "content"
	answer, err := s.plugins.Plugins(ctx, &introspectionapi.PluginsRequest{
		Filters: []string{fmt.Sprintf("type==%q,id==%q", pluginType, id)}})
	if err != nil {
		return "", fmt.Errorf("ask containerd for its content store: %w", err)
	}
	for _, plugin := range answer.Plugins {
		if root := plugin.Exports["root"]; root != "" {
			return contents(root), nil
		}
	}
	return "", errors.New("containerd has no content store of its own (a directory): a proxy is configured instead")
}

// Run makes links for the images that containerd has and gets, until ctx is done. If no namespace
// is configured, it removes the links of earlier daemons.
func (b *Blobs) Run(ctx context.Context) {
	if b.conn == nil || b.isOn() && !b.shown || !b.isOn() && b.stored.Contents == "" {
		return
	}
	s := newStore(b.conn)
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		err := b.session(ctx, s)
		if err == nil || ctx.Err() != nil {
			return
		}
		b.setProblem(err)
		if failures++; time.Since(began) > connectPauses.Most {
			failures = 1
		}
		if failures == quietFailures { // one line for a containerd that is away
			b.config.Log.Warn("containerd does not get the layers of lazy images now", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(connectPauses.After(failures)):
		case <-b.wake:
			failures = 0
		}
	}
}

// awaitSession waits until there is a session with containerd. The caller knows that containerd
// answers, so no pause between two attempts is waited for.
func (b *Blobs) awaitSession(ctx context.Context) error {
	b.mu.Lock()
	begun := b.begun
	b.mu.Unlock()
	select {
	case <-begun:
		return nil
	default:
	}
	b.conn.ResetConnectBackoff()
	select {
	case b.wake <- struct{}{}:
	default: // the next attempt does not wait either
	}
	select {
	case <-begun:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginSession says that there is a session. The caller calls end at the session's end.
func (b *Blobs) beginSession() (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.begun)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.begun = make(chan struct{})
	}
}

// session works with containerd until a request fails. It returns nil if there is nothing to do any
// more.
func (b *Blobs) session(ctx context.Context, s store) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := s.contents(ctx)
	if err != nil {
		return err
	}
	if !b.isOn() {
		if err := s.forget(ctx, in, nil); err != nil {
			return err
		}
		return errors.Join(os.RemoveAll(in.scratch()), os.Remove(storedFile(b.config.Root)))
	}
	if err := b.keepWhere(in); err != nil {
		return err
	}
	arrived, failed := s.events.Subscribe(ctx, `topic~="^/images/(create|update)$"`)
	b.setProblem(nil) // begin may find another one
	if err := b.begin(ctx, s, in); err != nil {
		return err
	}
	defer b.beginSession()()
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	for {
		select {
		case event := <-arrived:
			b.handle(ctx, s, in, event)
		case err := <-failed:
			if err == nil {
				err = errors.New("containerd sends no more events")
			}
			return err
		case <-tick.C:
			if err := b.scan(ctx, s, in); err != nil {
				return err
			}
		}
	}
}

// begin removes what earlier daemons have left, and makes the links for all images.
func (b *Blobs) begin(ctx context.Context, s store, in contents) error {
	if b.cleaned != in { // else a layer may be in flight
		b.clean(in)
	}
	links, err := in.links()
	if err != nil {
		return err
	}
	for _, n := range links {
		if err := in.link(n, mountPoint(b.config.Root)); err != nil {
			return fmt.Errorf("renew the link of layer %s: %w", n.layer, err)
		}
	}
	if err := s.forget(ctx, in, b.config.Namespaces); err != nil {
		return err
	}
	return b.scan(ctx, s, in)
}

// NoteLazy makes the links for an image that is being pulled, whose layers containerd does not
// download. So whoever reads the image after the pull finds its layers. If that takes too long, the
// event of the pull's end makes the links. The context is that of a request of containerd.
func (b *Blobs) NoteLazy(ctx context.Context, manifest string) {
	namespace, _ := namespaces.Namespace(ctx)
	if !b.isOn() || !b.shown || !slices.Contains(b.config.Namespaces, namespace) {
		return
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, namespace), pullTimeout)
	defer cancel()
	if err := b.linkPulled(ctx, manifest); err != nil {
		b.config.Log.Info("a pull did not wait for the links of its layers", "manifest", manifest,
			"namespace", namespace, "err", err)
	}
}

// linkPulled makes the links for the image with a manifest.
func (b *Blobs) linkPulled(ctx context.Context, manifest string) error {
	if err := b.awaitSession(ctx); err != nil {
		return fmt.Errorf("wait for a connection to containerd: %w", err)
	}
	in, err := b.where()
	if err != nil {
		return err
	}
	s := newStore(b.conn)
	info, err := s.content.Info(ctx, digest.Digest(manifest))
	if err != nil {
		return err
	}
	_, err = b.linkTarget(ctx, s, in, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest,
		Digest: info.Digest, Size: info.Size})
	return err
}

// handle makes the links for an image that was made or changed.
func (b *Blobs) handle(ctx context.Context, s store, in contents, event *events.Envelope) {
	if !slices.Contains(b.config.Namespaces, event.Namespace) {
		return
	}
	v, err := typeurl.UnmarshalAny(event.Event)
	if err != nil {
		b.config.Log.Warn("cannot decode an event of containerd", "topic", event.Topic, "err", err)
		return
	}
	var image string
	switch e := v.(type) {
	case *eventsapi.ImageCreate:
		image = e.Name
	case *eventsapi.ImageUpdate:
		image = e.Name
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, event.Namespace), requestTimeout)
	defer cancel()
	answer, err := s.images.Get(ctx, &imagesapi.GetImageRequest{Name: image})
	if err == nil {
		_, err = b.linkTarget(ctx, s, in, targetOf(answer.Image))
	}
	if err != nil && !errdefs.IsNotFound(err) {
		b.config.Log.Warn("containerd cannot have all layers of an image", "image", image, "namespace", event.Namespace,
			"err", err)
	}
}

// scan makes the links for all images. An image that was made on another one may need the links of
// that one, so it is looked at twice.
func (b *Blobs) scan(ctx context.Context, s store, in contents) error {
	unknown := 0
	for _, namespace := range b.config.Namespaces {
		ctx := namespaces.WithNamespace(ctx, namespace)
		answer, err := s.images.List(ctx, &imagesapi.ListImagesRequest{})
		if err != nil {
			return fmt.Errorf("list the images of containerd's namespace %s: %w", namespace, err)
		}
		for _, last := range []bool{false, true} {
			for _, image := range answer.Images {
				n, err := b.linkTarget(ctx, s, in, targetOf(image))
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if last {
					unknown += n
				}
				if err != nil && last {
					b.config.Log.Warn("containerd cannot have all layers of an image", "image", image.Name,
						"namespace", namespace, "err", err)
				}
			}
		}
	}
	b.count(func(s *Status) { s.Unknown = unknown })
	return nil
}

// targetOf returns the index or the manifest of an image.
func targetOf(image *imagesapi.Image) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: image.Target.MediaType, Digest: digest.Digest(image.Target.Digest),
		Size: image.Target.Size}
}

// linkTarget makes the links for an image. It returns how many layers containerd lacks that no hub
// has.
func (b *Blobs) linkTarget(ctx context.Context, s store, in contents, target ocispec.Descriptor) (
	unknown int, err error) {
	manifests, err := s.manifests(ctx, target, 0)
	for _, m := range manifests {
		n, linkErr := b.linkManifest(ctx, s, in, m)
		unknown += n
		err = errors.Join(err, linkErr)
	}
	return unknown, err
}

// manifest is a manifest in the content store.
type manifest struct {
	ocispec.Manifest
	digest string
	labels map[string]string
}

// manifests returns the manifests of an image that containerd has: it pulls only some of an index.
func (s store) manifests(ctx context.Context, desc ocispec.Descriptor, depth int) (all []manifest, err error) {
	isIndex := images.IsIndexType(desc.MediaType)
	if !isIndex && !images.IsManifestType(desc.MediaType) || depth > maxDepth {
		return nil, nil
	}
	info, err := s.content.Info(ctx, desc.Digest)
	if err != nil {
		return nil, ignoreMissing(err)
	}
	if isIndex {
		var index ocispec.Index
		if err := s.read(ctx, desc, &index); err != nil {
			return nil, err
		}
		for _, child := range index.Manifests {
			below, belowErr := s.manifests(ctx, child, depth+1)
			all, err = append(all, below...), errors.Join(err, belowErr)
		}
		return all, err
	}
	m := manifest{digest: desc.Digest.String(), labels: info.Labels}
	if err := s.read(ctx, desc, &m.Manifest); err != nil {
		return nil, err
	}
	return []manifest{m}, nil
}

// read decodes a small blob of containerd.
func (s store) read(ctx context.Context, desc ocispec.Descriptor, into any) error {
	if desc.Size > maxManifest {
		return fmt.Errorf("%s has %d bytes, which is too many", desc.Digest, desc.Size)
	}
	text, err := content.ReadBlob(ctx, s.content, ocispec.Descriptor{Digest: desc.Digest, Size: desc.Size})
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", desc.Digest, err)
	}
	return nil
}

// keeps reports whether the manifest keeps a layer that registries distribute: containerd's garbage
// collector removes all others.
func (m *manifest) keeps(layer ocispec.Descriptor) bool {
	if !images.IsLayerType(layer.MediaType) || images.IsNonDistributable(layer.MediaType) {
		return false
	}
	for key, value := range m.labels {
		if value == layer.Digest.String() && strings.HasPrefix(key, "containerd.io/gc.ref.content") {
			return true
		}
	}
	return false
}

// linkManifest makes a link and an entry for each layer of a manifest that containerd lacks. It
// returns how many of them no hub has.
func (b *Blobs) linkManifest(ctx context.Context, s store, in contents, m manifest) (unknown int, err error) {
	isKnown := sync.OnceValues(func() (bool, error) {
		_, err := b.config.Layers.Statements.Image(ctx, m.digest)
		if errors.Is(err, chunk.ErrNotFound) {
			return false, nil
		}
		return err == nil, err
	})
	for i, layer := range m.Layers {
		n := name{layer.Size, m.digest, layer.Digest.String()}
		if !m.keeps(layer) || !n.isValid() {
			continue
		}
		known, err := b.linkLayer(ctx, s, in, n, isKnown, func() map[string]string { return s.labelsOf(ctx, m, i) })
		if err != nil {
			return unknown, fmt.Errorf("make a link and an entry for layer %s in containerd: %w", n.layer, err)
		}
		if !known {
			unknown++
		}
	}
	return unknown, nil
}

// linkLayer makes a link and an entry for a layer that containerd lacks. It returns false if a hub
// would have to know the image (isKnown), and none does, or none had the layer. set returns the
// labels of the entry.
func (b *Blobs) linkLayer(ctx context.Context, s store, in contents, n name, isKnown func() (bool, error),
	set func() map[string]string) (known bool, err error) {
	_, missing := s.content.Info(ctx, digest.Digest(n.layer))
	made := !in.exists(n.layer)
	switch {
	case missing == nil && !made:
		return true, nil
	case ignoreMissing(missing) != nil:
		return true, missing
	case made:
		if known, err := isKnown(); err != nil || !known || b.isGone(n) {
			return false, err
		}
		if err := in.link(n, mountPoint(b.config.Root)); err != nil {
			return true, err
		}
	}
	if err := s.add(ctx, n, set()); err != nil {
		if errors.Is(err, errUnshared) {
			b.setProblem(err)
		}
		if made { // containerd does not use the link, so it must not find it
			err = errors.Join(err, in.unlink(n.layer))
		}
		return true, err
	}
	b.config.Log.Debug("containerd has a layer that it has not downloaded", "layer", n.layer, "bytes", n.size)
	return true, nil
}

// labelsOf returns the labels that containerd sets on a layer that it downloads: from where it is,
// and its diffID.
func (s store) labelsOf(ctx context.Context, m manifest, layer int) map[string]string {
	set := map[string]string{}
	for key, value := range m.labels {
		if strings.HasPrefix(key, labels.LabelDistributionSource+".") {
			set[key] = value
		}
	}
	var config ocispec.Image
	if err := s.read(ctx, m.Config, &config); err == nil && len(config.RootFS.DiffIDs) == len(m.Layers) {
		set[labels.LabelUncompressed] = config.RootFS.DiffIDs[layer].String()
	}
	return set
}

// errUnshared means that containerd does not take over the layer that a link points to.
var errUnshared = errors.New("containerd wants the layer's bytes: its content_sharing_policy is isolated, " +
	"or it does not see the node's mounts because its mount namespace is another one")

// add makes containerd's entry for a layer that has a link.
func (s store) add(ctx context.Context, n name, set map[string]string) error {
	w, err := s.content.Writer(ctx, content.WithRef("lighter-"+n.layer),
		content.WithDescriptor(ocispec.Descriptor{Digest: digest.Digest(n.layer), Size: n.size}))
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close()
	status, err := w.Status()
	if err == nil && status.Offset != n.size {
		err = errors.Join(errUnshared, s.content.Abort(ctx, "lighter-"+n.layer))
	}
	if err != nil {
		return err
	}
	err = w.Commit(ctx, n.size, digest.Digest(n.layer), content.WithLabels(set))
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// forget removes the entries of layers with links in all namespaces but some, and the links that
// have no entry then.
func (s store) forget(ctx context.Context, in contents, except []string) error {
	links, err := in.links()
	if err != nil || len(links) == 0 {
		return err
	}
	return s.forgetLinks(ctx, in, links, except)
}

func (s store) forgetLinks(ctx context.Context, in contents, links []name, except []string) error {
	answer, err := s.namespaces.List(ctx, &namespacesapi.ListNamespacesRequest{})
	if err != nil {
		return fmt.Errorf("list the namespaces of containerd: %w", err)
	}
	kept := map[string]bool{}
	for _, namespace := range answer.Namespaces {
		ctx := namespaces.WithNamespace(ctx, namespace.Name)
		for _, n := range links {
			if slices.Contains(except, namespace.Name) {
				_, err = s.content.Info(ctx, digest.Digest(n.layer))
				kept[n.layer] = kept[n.layer] || err == nil
			} else {
				err = s.content.Delete(ctx, digest.Digest(n.layer))
			}
			if ignoreMissing(err) != nil {
				return fmt.Errorf("remove the entry of layer %s in namespace %s: %w", n.layer, namespace.Name, err)
			}
		}
	}
	for _, n := range links {
		if !kept[n.layer] {
			if err := in.unlink(n.layer); err != nil {
				return fmt.Errorf("remove a link: %w", err)
			}
		}
	}
	return nil
}

// giveUp removes the entries and the link of a layer that no hub has, so that containerd knows that
// it lacks the layer. No link is made for it for a while.
func (b *Blobs) giveUp(ctx context.Context, in contents, n name) error {
	b.mu.Lock()
	if len(b.gone) >= maxGone {
		clear(b.gone)
	}
	b.gone[n] = time.Now().Add(goneTTL)
	b.mu.Unlock()
	if b.conn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return newStore(b.conn).forgetLinks(ctx, in, []name{n}, nil)
}

// isGone reports whether a layer was given up a short while ago.
func (b *Blobs) isGone(n name) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().Before(b.gone[n])
}

func ignoreMissing(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Release removes all links of a node that does not run, and containerd's entries for them.
// containerd must run, because it alone can change its entries. Without links, Release does
// nothing.
func Release(ctx context.Context, root string) error {
	s, err := readStored(root)
	if err != nil || s.Contents == "" {
		return errors.Join(err, mount.DetachBlobs(root, mountPoint(root)))
	}
	links, err := s.Contents.links()
	if err == nil && len(links) > 0 {
		err = releaseLinks(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("remove the links of %d layers that containerd has not downloaded: %w (start containerd and "+
			"release the node again, or remove the images)", len(links), err)
	}
	return errors.Join(mount.DetachBlobs(root, mountPoint(root)), os.RemoveAll(s.Contents.scratch()),
		os.Remove(storedFile(root)))
}

func releaseLinks(ctx context.Context, s stored) error {
	conn, err := dial(s.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return newStore(conn).forget(ctx, s.Contents, nil)
}
