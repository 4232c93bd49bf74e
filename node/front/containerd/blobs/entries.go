package blobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	"github.com/containerd/containerd/v2/core/content"
	contentproxy "github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/core/events"
	eventsproxy "github.com/containerd/containerd/v2/core/events/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
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
