// Package hub runs a hub: one process with one directory, which ingests images and answers nodes.
// It puts the hub's packages together, and owns what they share: the directory, the signing keys,
// the HTTP servers, metrics, and the order of starting and ending.
//
// Only one hub runs in a directory. At an address that other machines can reach, a hub serves plain
// HTTP, or lets everybody make changes, only if its configuration says so.
package hub

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/format/tree"
	"lighter/hub/access"
	"lighter/hub/admin"
	"lighter/hub/answer"
	"lighter/hub/blobs"
	"lighter/hub/catalog"
	"lighter/hub/collect"
	"lighter/hub/encoder"
	"lighter/hub/expiry"
	"lighter/hub/fsck"
	"lighter/hub/holders"
	"lighter/hub/images"
	"lighter/hub/ingest"
	"lighter/hub/jobs"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/registry"
	"lighter/hub/retention"
	"lighter/hub/serve"
	"lighter/hub/space"
	"lighter/hub/startup"
	"lighter/hub/upstream"
	"lighter/hub/verify"
)

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeader         = 64 << 10
	// maxConnections bounds the open connections, of some 20 KB each. A node has at most 512, and
	// mostly far fewer. Further ones wait in the kernel's queue.
	maxConnections = 16_384
	// shutdownTimeout bounds how long requests in flight may take when the hub ends.
	shutdownTimeout = 5 * time.Second
)

// Hub is an open hub.
type Hub struct {
	config    Config
	tls       *tls.Config // nil: plain HTTP
	log       *slog.Logger
	closers   []io.Closer // in the order of opening
	objects   *objects.Store
	catalog   *catalog.Catalog
	upstream  *upstream.Reader
	registry  *registry.Registry
	jobs      *jobs.Queue
	images    *images.Service
	blobs     *blobs.Collector
	trees     *ingest.Trees
	publisher *publish.Publisher
	verifier  *verify.Verifier
	checker   *fsck.Checker
	starts    *startup.Service
	holders   *holders.Service
	expiry    *expiry.Service
	reserve   *space.Reserve
	collector *collect.Collector
	keys      signingKeys
	proxies   []netip.Prefix
	access    *access.Policy
	view      *view
	end       context.CancelFunc // ends the background work

	maxConnections int // the constant; fewer in tests
}

// memoryTarget is the soft memory limit of the Go runtime, in bytes. While the tree of an image of
// a million files is made, half of it is in use.
const memoryTarget = 896 << 20

// Run runs a hub until ctx ends. It sets the memory limit of the process.
func Run(ctx context.Context, c Config, log *slog.Logger) error {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryTarget)
	}
	h, err := Open(ctx, c, log)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return errors.Join(fmt.Errorf("listen: %w", err), h.Close())
	}
	return errors.Join(h.Serve(ctx, listener), h.Close())
}

// Open opens a hub, and makes what is missing in its directory. The caller calls Close. ctx must
// last as long as the hub.
func Open(ctx context.Context, c Config, log *slog.Logger) (*Hub, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	tlsConfig, err := c.tls(log)
	if err != nil {
		return nil, err
	}
	policy, err := access.New(c.AdminTokenFile, c.Names)
	if err != nil {
		return nil, err
	}
	h := &Hub{config: c, log: log, tls: tlsConfig, access: policy, maxConnections: maxConnections}
	ctx, h.end = context.WithCancel(ctx)
	if err := h.open(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Hub) open(ctx context.Context) (err error) {
	c := &h.config
	lock, err := prepareRoot(c.Root)
	if err != nil {
		return err
	}
	h.closers = append(h.closers, lock)
	if h.proxies, err = c.proxies(); err != nil {
		return err
	}
	bucket, err := c.bucketURL()
	if err != nil {
		return err
	}
	if h.objects, err = objects.Open(ctx, bucket); err != nil {
		return err
	}
	h.closers = append(h.closers, h.objects)
	scratch, err := c.prepareScratch()
	if err != nil {
		return err
	}
	if h.catalog, err = catalog.Open(ctx, cmp.Or(c.Catalog, catalogFile(c.Root))); err != nil {
		return err
	}
	h.closers = append(h.closers, h.catalog)
	h.view = newView(h.catalog, h.log)
	signed, err := h.catalog.HasStatements(ctx)
	if err != nil {
		return err
	}
	if h.keys, err = loadKeys(keyFile(c.Root), signed); err != nil {
		return err
	}
	if err := h.catalog.Resign(ctx, h.keys); err != nil {
		return err
	}
	h.upstream = upstream.New(ctx, upstream.Config{Catalog: h.catalog, Sources: c.Sources, LoginFile: c.UpstreamLogins,
		Dir: scratch, Log: h.log})
	h.closers = append(h.closers, h.upstream)
	if h.registry, err = registry.Open(ctx, c.registryStorage(), h.upstream, registryUses{h.catalog.Blobs},
		h.keys.derive("uploads of the registry"), h.log); err != nil {
		return err
	}
	h.registry.ReleasesLayers = images.KeepBlobs(c.KeepBlobs) == images.KeepNever
	name, err := owner(c.Root)
	if err != nil {
		return err
	}
	if err := h.catalog.Jobs.DropLeases(ctx, name+"/"); err != nil { // of the previous process, which has ended
		return err
	}
	limits := tree.Limits{Entries: c.Limits.Entries, Bytes: c.Limits.LayerBytes}
	publisher, encoders := publish.New(h.catalog, h.objects, scratch, name, h.log), encoder.NewPool(runtime.GOMAXPROCS(0))
	h.publisher = publisher
	h.trees = ingest.NewTrees(ctx, h.catalog, h.objects, publisher, limits, h.keys, h.log)
	h.jobs = jobs.New(h.catalog.Jobs, name, h.log)
	h.verifier = verify.New(h.catalog, h.objects, h.registry, publisher, h.trees, limits, h.keys, h.jobs)
	ingester := ingest.New(h.catalog, publisher, encoders, h.trees, h.log)
	h.images = images.New(ctx, images.Config{Platforms: c.Platforms, Sources: c.Sources, Quotas: c.Quota,
		MaxBlob:   limits.Bytes,
		KeepBlobs: images.KeepBlobs(c.KeepBlobs), Upstream: h.upstream.Source,
		ImageTime: time.Duration(c.Limits.ImageMinutes) * time.Minute, Keys: h.keys, RegistryHosts: c.RegistryHosts,
		Secret: h.keys.derive("logins of jobs"),
		Ready:  h.imageIsReady, Log: h.log},
		h.catalog, h.registry, ingester, h.jobs)
	h.checker = fsck.New(fsck.Config{Catalog: h.catalog, Objects: h.objects, Registry: h.registry, Publisher: publisher,
		Ingester: ingester, Trees: h.trees, Limits: limits, Jobs: h.jobs, ScrubDays: c.ScrubDays, Log: h.log})
	h.blobs = blobs.New(blobs.Config{Catalog: h.catalog, Registry: h.registry, Upstream: h.upstream,
		Keep: images.KeepBlobs(c.KeepBlobs), Jobs: h.jobs, Log: h.log})
	h.starts = startup.New(startup.Config{Catalog: h.catalog, Objects: h.objects, Publisher: publisher,
		Encoders: encoders,
		Images:   h.images, Jobs: h.jobs, Limit: c.StartupBytes, Log: h.log})
	h.holders = holders.New(h.catalog, time.Duration(c.KeepHeldDays)*24*time.Hour, h.log)
	h.expiry = expiry.New(retention.Policy{Rules: c.Retention, MaxPercent: c.RetentionMaxPercent}, h.catalog, h.images,
		h.jobs, h.log)
	h.collector = collect.New(collect.Config{Catalog: h.catalog, Objects: h.objects, Publisher: publisher,
		Encoders: encoders, Every: time.Duration(c.GC.EveryMinutes) * time.Minute,
		Delay: time.Duration(c.GC.DelayMinutes) * time.Minute,
		Keep:  time.Duration(c.GC.KeepMinutes) * time.Minute, Log: h.log}, h.jobs)
	h.reserve = space.New(c.DiskReserve, c.dirs()...)
	h.jobs.Around(h.reserve.Job, images.JobKind, catalog.LayoutJob)
	h.view.jobs, h.view.starts, h.view.holders, h.view.expiry = h.jobs, h.starts, h.holders, h.expiry
	h.view.reserve, h.view.images, h.view.quotas = h.reserve, h.images, c.Quota
	h.view.collector = h.collector
	h.publisher.Recover(ctx)
	return h.images.Recover(ctx)
}

// imageIsReady prepares the first start of a new image. It waits for its startup packs.
func (h *Hub) imageIsReady(ctx context.Context, image catalog.Image) error {
	return h.starts.Await(ctx, image.Tree)
}

// Close closes the hub's files.
func (h *Hub) Close() error {
	h.end()
	var errs []error
	for _, c := range slices.Backward(h.closers) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// registryUses keeps in the catalog which blobs of the registry clients rely on.
type registryUses struct{ *catalog.Blobs }

// IsDeleting implements registry.Uses.
func (registryUses) IsDeleting(err error) bool { return errors.Is(err, catalog.ErrDeleting) }

// nodeImages answers what nodes ask about images.
type nodeImages struct {
	*images.Service
	*ingest.Trees
}

// userImages answers what users ask about images.
type userImages struct {
	*images.Service
	*verify.Verifier
}

// handler answers all requests. It does not ask who may make them.
func (h *Hub) handler() http.Handler {
	bodies := answer.NewBodies()
	api := answer.NewMux(h.log)
	nodes := serve.Server{Catalog: h.catalog, Objects: h.objects, Images: nodeImages{h.images, h.trees},
		Traces: h.starts, Holders: h.holders, Bodies: bodies, Keys: h.keys.public(), Proxies: h.proxies, Log: h.log}
	nodes.Register(api)
	users := admin.Server{Catalog: h.catalog, Images: userImages{h.images, h.verifier}, Jobs: h.jobs,
		Starts: h.starts, Holders: h.holders, Retention: h.expiry, Checker: h.checker,
		Collector: h.collector,
		Bodies:    bodies, Key: h.keys.public()[0], Log: h.log}
	users.Register(api)
	mux := http.NewServeMux()
	h.view.register(mux)
	mux.Handle("/v2/", h.reserve.Uploads(h.registry.Handler(h.images)))
	mux.Handle("/", api)
	return mux
}

// public answers at the address for everybody. Changes are made there, too, unless they have an
// address of their own.
func (h *Hub) public(all http.Handler) http.Handler {
	if h.config.AdminListen != "" {
		return h.watched(h.access.ReadOnly(all))
	}
	return h.watched(h.access.Public(all))
}

// admin answers at admin_listen. The file mode of a Unix socket decides who can connect to it.
func (h *Hub) admin(all http.Handler) http.Handler {
	if strings.HasPrefix(h.config.AdminListen, unixPrefix) {
		return h.watched(all)
	}
	return h.watched(h.access.Admin(all))
}

// watched counts and logs requests, and ends stalled ones.
func (h *Hub) watched(next http.Handler) http.Handler {
	return h.view.counted(unstalled(h.logged(next), stallTimeout))
}

// server returns an HTTP server for a handler.
func (h *Hub) server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, TLSConfig: h.tls,
		ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug), // about broken connections
	}
}

// Serve answers on the listener and at admin_listen, and does the hub's background work, until ctx
// ends.
func (h *Hub) Serve(ctx context.Context, listener net.Listener) error {
	admin, err := h.config.listenAdmin()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	all := h.handler()
	h.log.Info("hub started", "root", h.config.Root, "address", listener.Addr(), "admin", h.config.AdminListen,
		"keys", h.keys.text())
	if h.config.Open {
		h.log.Warn("everybody who reaches the hub may make changes (open)", "address", listener.Addr())
	}
	group, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, h.end)()
	group.Go(func() error { return h.jobs.Run(ctx) })
	group.Go(func() error { return h.publisher.Run(ctx) })
	group.Go(func() error { return h.blobs.Run(ctx) })
	group.Go(h.trees.Run)
	group.Go(func() error { return h.checker.Run(ctx) })
	group.Go(func() error { return h.catalog.KeepSizes(ctx) })
	group.Go(func() error { return h.starts.Run(ctx) })
	group.Go(func() error { return h.holders.Run(ctx) })
	group.Go(func() error { return h.expiry.Run(ctx) })
	group.Go(func() error { return h.collector.Run(ctx) })
	h.answer(ctx, group, listener, h.public(all))
	if admin != nil {
		h.answer(ctx, group, admin, h.admin(all))
	}
	err = group.Wait()
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// answer adds goroutines to the group that answer on a listener until ctx ends.
func (h *Hub) answer(ctx context.Context, group *errgroup.Group, listener net.Listener, handler http.Handler) {
	server := h.server(handler)
	isUnix := listener.Addr().Network() == "unix"
	listener = newConnections(server, listener, h.maxConnections)
	group.Go(func() error {
		if h.tls != nil && !isUnix {
			return server.ServeTLS(listener, "", "")
		}
		return server.Serve(listener)
	})
	group.Go(func() error {
		<-ctx.Done()
		h.view.stopping.Store(true)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(end); err != nil {
			return server.Close() // requests that still wait for an image are cut
		}
		return nil
	})
}

// logged logs each request at the debug level, without headers and query, which may hold secrets.
func (h *Hub) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !h.log.Enabled(req.Context(), slog.LevelDebug) {
			next.ServeHTTP(w, req)
			return
		}
		started := time.Now()
		next.ServeHTTP(w, req)
		h.log.Debug("request", "method", req.Method, "path", req.URL.Path, "from", req.RemoteAddr, "duration",
			time.Since(started))
	})
}
