// Package differ writes what a container has changed as a layer, for `docker commit`, `nerdctl
// commit` and `ctr snapshots diff`. It is containerd's diff service for the mounts of this node's
// snapshotter.
//
// containerd's own differ walks the merged trees of a snapshot and of its parent, and reads files
// of both. For a lazy parent it would fetch them. This differ walks the top directory of the
// snapshot's overlay, which has every change. It looks only the changed names up in the parent. It
// promises the bytes that containerd's own differ (of the version in go.mod) writes for the same
// mounts: the same entries, headers, order and compression. It reads the contents of a parent's
// file only if containerd's would have to: if a changed file has the same size and the same time in
// whole seconds.
//
// It refuses (errdefs.ErrNotImplemented) all that it cannot do exactly, so that containerd asks the
// next differ in its list: mounts that are not this snapshotter's, a parent that is not all that is
// below the top directory, ID-mapped mounts, and top directories with marks that only overlayfs can
// follow (redirect_dir, metacopy). It also refuses if containerd does not answer on its socket.
//
// The layer goes into containerd's content store, over containerd's socket, in the namespace of the
// request. containerd does not pass on the lease of a request. Without a lease, its garbage
// collector could delete the layer before an image names it. So each layer gets a lease of its own,
// which ends by itself (leaseTime).
//
// A container that runs meanwhile can change files while they are read. The result is then a mix,
// or an error, as with containerd's own differ.
package differ

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/v2/core/content"
	contentproxy "github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/leases"
	leasesproxy "github.com/containerd/containerd/v2/core/leases/proxy"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// leaseTime is how long a layer is kept if no image names it. Docker gives a whole commit as long.
const leaseTime = time.Hour

// maxDiffs bounds the layers that are written at a time. Each takes about 3 MiB of memory. Further
// requests wait.
const maxDiffs = 4

// stopTimeout bounds the requests that clean up after a failure.
const stopTimeout = 10 * time.Second

// Config says whose mounts a differ knows, and where it writes layers to.
type Config struct {
	Snapshots string // directory of the snapshotter's snapshots (package front/containerd)
	Socket    string // containerd's Unix socket; empty: the differ refuses everything
	Log       *slog.Logger
}

// A Differ implements containerd's diff.Comparer.
type Differ struct {
	dir    string
	store  content.Store
	leases leases.Manager
	conn   *grpc.ClientConn // nil without a socket
	slots  chan struct{}    // has an element for each layer that is being written
	log    *slog.Logger
}

var _ diff.Comparer = (*Differ)(nil)

// New makes a differ. It does not connect to containerd yet.
func New(cfg Config) (*Differ, error) {
	d := &Differ{dir: filepath.Clean(cfg.Snapshots), slots: make(chan struct{}, maxDiffs), log: cfg.Log}
	if cfg.Socket == "" {
		return d, nil
	}
	conn, err := grpc.NewClient("unix://"+cfg.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", cfg.Socket, err)
	}
	d.conn = conn
	d.store = contentproxy.NewContentStore(conn)
	d.leases = leasesproxy.NewLeaseManager(leasesapi.NewLeasesClient(conn))
	return d, nil
}

// Close closes the connection to containerd.
func (d *Differ) Close() error {
	if d.conn == nil {
		return nil
	}
	return d.conn.Close()
}

// Compare writes the difference between a parent (lower) and a snapshot on it (upper) as a layer,
// and returns the layer's descriptor.
func (d *Differ) Compare(
	ctx context.Context, lower, upper []mount.Mount, opts ...diff.Opt,
) (ocispec.Descriptor, error) {
	desc, err := d.compare(ctx, lower, upper, opts...)
	if errdefs.IsNotImplemented(err) {
		d.log.DebugContext(ctx, "containerd's own differ has to write a layer", "err", err)
	}
	return desc, err
}

func (d *Differ) compare(
	ctx context.Context, lower, upper []mount.Mount, opts ...diff.Opt,
) (desc ocispec.Descriptor, err error) {
	if d.store == nil {
		return desc, refuse("the node has no socket of containerd")
	}
	format, err := formatOf(opts)
	if err != nil {
		return desc, err
	}
	top, err := d.topOf(lower, upper)
	if err != nil {
		return desc, err
	}
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return desc, ctx.Err()
	}
	if err := top.check(ctx); err != nil {
		return desc, err
	}
	ctx, forget, err := d.lease(ctx)
	if err != nil {
		return desc, err
	}
	err = withDetached(lower, func(base string) error {
		desc, err = d.write(ctx, layer{format: format, walk: walk{base: base, top: top}})
		return err
	})
	if err != nil {
		forget()
	}
	return desc, err
}

// lease returns a context for requests to containerd: in the namespace of the request, and with a
// lease. If the layer is not written, its lease has to be forgotten.
func (d *Differ) lease(request context.Context) (ctx context.Context, forget func(), err error) {
	namespace, err := namespaces.NamespaceRequired(request)
	if err != nil {
		return nil, nil, refuse(err.Error())
	}
	ctx = namespaces.WithNamespace(request, namespace)
	if id, ok := leases.FromContext(request); ok {
		return leases.WithLease(ctx, id), func() {}, nil
	}
	lease, err := d.leases.Create(ctx, leases.WithRandomID(), leases.WithExpiration(leaseTime))
	if err != nil {
		d.log.WarnContext(ctx, "cannot write a layer to containerd, whose own differ has to: "+
			"the setting containerd may name a wrong socket", "err", err)
		return nil, nil, refuse(err.Error())
	}
	forget = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := d.leases.Delete(ctx, lease); err != nil {
			d.log.InfoContext(ctx, "cannot delete a lease: it ends by itself", "lease", lease.ID, "err", err)
		}
	}
	return leases.WithLease(ctx, lease.ID), forget, nil
}

// refuse returns the error after which containerd asks its next differ.
func refuse(why string) error { return fmt.Errorf("%s: %w", why, errdefs.ErrNotImplemented) }
