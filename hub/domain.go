package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"lighter/format/tree"
	"lighter/hub/admin"
	"lighter/hub/answer"
	"lighter/hub/attach"
	"lighter/hub/blobs"
	"lighter/hub/catalog"
	"lighter/hub/collect"
	"lighter/hub/encoder"
	"lighter/hub/events"
	"lighter/hub/expiry"
	"lighter/hub/export"
	"lighter/hub/fsck"
	"lighter/hub/holders"
	"lighter/hub/hooks"
	"lighter/hub/images"
	"lighter/hub/ingest"
	"lighter/hub/jobs"
	"lighter/hub/names"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/pullthrough"
	"lighter/hub/pushthrough"
	"lighter/hub/quota"
	"lighter/hub/registries"
	"lighter/hub/registry"
	"lighter/hub/retention"
	"lighter/hub/rootdir"
	"lighter/hub/serve"
	"lighter/hub/space"
	"lighter/hub/startup"
	"lighter/hub/uploads"
	"lighter/hub/upstream"
	"lighter/hub/verify"
	"lighter/hub/wants"
	"lighter/hub/wishlist"
	"lighter/wire"
)

// domain is a set of images with stores, signing keys and jobs of its own, and the services over
// these.
type domain struct {
	name    string
	config  Config // the hub's, with the places and quotas of this domain
	log     *slog.Logger
	closers []io.Closer        // in the order of opening
	end     context.CancelFunc // ends the background work

	objects   *objects.Store
	catalog   *catalog.Catalog
	upstream  *upstream.Reader
	registry  *registry.Registry
	uploads   *uploads.Splitter
	pushes    *uploads.Splitter // of layers that are pushed to other registries
	jobs      *jobs.Queue
	names     *names.Service
	quotas    *quota.Checker
	images    *images.Service
	wants     *wants.Service
	wishlists *wishlist.Service
	trees     *ingest.Trees
	publisher *publish.Publisher
	verifier  *verify.Verifier
	checker   *fsck.Checker
	starts    *startup.Service
	holders   *holders.Service
	events    *events.Service
	hooks     *hooks.Inbox
	expiry    *expiry.Service
	collector *collect.Collector
	attacher  *attach.Service
	exporter  *export.Exporter // nil: the domain has no mirror
	keys      signingKeys
	through   *pullthrough.Domain
}

// shared is what the domains of a process share: the bounds of its memory and disks.
type shared struct {
	owner      string // names the process as the owner of jobs and claims
	runner     *jobs.Runner
	encoders   *encoder.Pool
	trees      *ingest.Bounds
	starts     *startup.Bounds
	registries *registries.Registries
	upstreams  *upstream.Bounds
	uploads    *uploads.Bounds
	pushed     *uploads.Bounds // of layers that are pushed to other registries
	manifests  *registry.Bounds
	tables     *objects.Tables
	senders    *holders.Senders
	bodies     *answer.Bodies
	reserve    *space.Reserve
	spare      *space.Spare
	through    *pullthrough.Service
	pushes     *pushthrough.Service
	proxies    []netip.Prefix
	mirror     *export.Place // nil: the hub keeps no mirror
	rate       *rate.Limiter // of writing to the mirror
}

func newShared(c *Config, log *slog.Logger) (*shared, error) {
	proxies, err := c.proxies()
	if err != nil {
		return nil, err
	}
	others, err := registries.New(c.Registries, log)
	var mirror *export.Place
	if c.Export.To != "" {
		mirror = export.NewPlace(c.Export.To)
	}
	catalogDisk := space.New(int64(c.DiskReserve), space.Dir{Name: "root", Path: c.Root})
	if c.Catalog != "" { // the catalogs are in PostgreSQL, and need no spare file
		catalogDisk = space.New(0)
	}
	return &shared{runner: jobs.NewRunner(), encoders: encoder.NewPool(runtime.GOMAXPROCS(0)),
		trees: ingest.NewBounds(), starts: startup.NewBounds(), registries: others,
		upstreams: upstream.NewBounds(int64(c.PullThroughBytes)),
		manifests: registry.NewBounds(), tables: objects.NewTables(), senders: holders.NewSenders(),
		bodies: answer.NewBodies(), uploads: uploads.NewBounds(), pushed: uploads.NewBounds(),
		reserve: space.New(int64(c.DiskReserve), c.dirs()...),
		spare:   space.OpenSpare(rootdir.Spare(c.Root), catalogDisk, log), proxies: proxies,
		mirror: mirror, rate: export.NewLimiter(int64(c.Export.Rate))}, err
}

// openDomain opens a domain. It makes directories, a catalog and a signing key if they are missing.
// The caller calls Close. ctx must last as long as the domain.
func openDomain(ctx context.Context, name string, c Config, with *shared, log *slog.Logger) (*domain, error) {
	own, err := c.ofDomain(name)
	if err != nil {
		return nil, err
	}
	d := &domain{name: name, config: own, log: log}
	if name != wire.DefaultDomain {
		d.log = log.With("domain", name)
	}
	ctx, d.end = context.WithCancel(ctx)
	if err := d.open(ctx, with); err != nil {
		return nil, fmt.Errorf("open domain %s: %w", name, errors.Join(err, d.Close()))
	}
	return d, nil
}

func (d *domain) open(ctx context.Context, with *shared) error {
	c := &d.config
	if err := os.MkdirAll(rootdir.Registry(c.Root), 0o700); err != nil {
		return fmt.Errorf("make the directory: %w", err)
	}
	switch lock, err := c.lockBucket(); {
	case err != nil:
		return err
	case lock != nil:
		d.closers = append(d.closers, lock)
	}
	bucket, err := c.bucketURL()
	if err != nil {
		return err
	}
	if d.objects, err = objects.Open(ctx, bucket); err != nil {
		return err
	}
	d.objects.Tables = with.tables
	d.closers = append(d.closers, d.objects)
	scratch, err := c.prepareScratch()
	if err != nil {
		return err
	}
	if d.catalog, err = catalog.Open(ctx, c.catalogPlace(d.name)); err != nil {
		return err
	}
	d.closers = append(d.closers, d.catalog)
	d.catalog.OnFull(with.spare.GiveUp)
	if d.keys, err = openKeys(ctx, d.catalog, rootdir.Key(c.Root)); err != nil {
		return err
	}
	d.upstream = upstream.New(ctx, upstream.Config{Catalog: d.catalog, Registries: with.registries,
		Dir: scratch, Room: with.reserve.Check, Bounds: with.upstreams, Log: d.log})
	d.closers = append(d.closers, d.upstream)
	if d.registry, err = registry.Open(ctx, c.registryStorage(), d.upstream, registryUses{d.catalog.Blobs},
		d.keys.derive("uploads of the registry"), d.log); err != nil {
		return err
	}
	d.registry.Bounds = with.manifests
	d.registry.ReleasesLayers = images.KeepBlobs(c.KeepBlobs) == images.KeepNever
	// The previous process in this directory has ended, so its jobs may be claimed at once.
	if err := d.catalog.Jobs.DropLeases(ctx, with.owner+"/"); err != nil {
		return err
	}
	d.publisher = publish.New(d.catalog, d.objects, scratch, with.owner, d.log)
	d.jobs = with.runner.Queue(d.catalog.Jobs, with.owner, d.log)
	d.serveStores(ctx, with, scratch)
	if d.events, err = events.New(ctx, events.Config{Domain: d.name, Targets: c.Events, Catalog: d.catalog,
		Jobs: d.jobs, Log: d.log}); err != nil {
		return err
	}
	d.hooks = hooks.NewInbox(hooks.Config{Hooks: c.Hooks, Catalog: d.catalog, Jobs: d.jobs, Look: d.look, Log: d.log})
	d.publisher.Recover(ctx)
	if err := d.images.Recover(ctx); err != nil {
		return err
	}
	return d.names.Recover(ctx)
}

// serveStores makes the services over the stores. They add their kinds of jobs to the queue.
func (d *domain) serveStores(ctx context.Context, with *shared, scratch string) {
	c := &d.config
	limits := tree.Limits{Entries: c.Limits.Entries, Bytes: int64(c.Limits.LayerBytes)}
	d.trees = ingest.NewTrees(ctx, d.catalog, d.objects, d.publisher, limits, with.trees, d.keys, d.log)
	d.verifier = verify.New(d.catalog, d.objects, d.registry, d.publisher, d.trees, limits, d.keys, d.jobs)
	ingester := ingest.New(d.catalog, d.publisher, with.encoders, d.trees, d.log)
	d.uploads = uploads.New(ctx, uploads.Config{Ingester: ingester, Dir: scratch, Room: with.reserve.Check,
		Bounds: with.uploads, Log: d.log})
	d.pushes = uploads.New(ctx, uploads.Config{Ingester: ingester, Dir: scratch, Room: with.reserve.Check,
		Bounds: with.pushed, Hold: holdTime, Log: d.log})
	d.closers = append(d.closers, d.uploads, d.pushes)
	ingester.Early = uploads.All{d.uploads, d.pushes}
	d.names = names.New(d.catalog, d.registry, d.jobs, images.Jobs{}, c.Platforms, d.log)
	d.quotas = quota.New(c.Quota, d.catalog, d.registry)
	d.images = images.New(ctx, images.Config{Names: d.names, Quotas: d.quotas,
		Platforms: c.Platforms, Registries: with.registries, Belongs: c.belongs(d.name), MaxBlob: limits.Bytes,
		KeepBlobs: images.KeepBlobs(c.KeepBlobs), Upstream: d.upstream.Source,
		ImageTime: time.Duration(c.Limits.ImageMinutes) * time.Minute, Secret: d.keys.derive("logins of jobs"),
		Memory: passed{d.upstream, with.through}, Published: d.imageIsReady, Ready: d.awaitLayout,
		Log: d.log},
		d.catalog, d.registry, ingester, d.jobs)
	d.wants = wants.New(wants.Config{Catalog: d.catalog, Images: d.images, Names: d.names, Source: d.upstream.Source,
		Belongs: c.belongs(d.name), Log: d.log}, d.jobs)
	d.wishlists = wishlist.New(wishlist.Config{Lists: c.Wishlists, MaxPercent: c.RetentionMaxPercent,
		Catalog: d.catalog, Wants: d.wants, Fetch: with.registries.Anonymous, Login: with.registries.Client,
		ImageJobs: images.JobKind, Log: d.log}, d.jobs)
	d.checker = fsck.New(fsck.Config{Catalog: d.catalog, Objects: d.objects, Registry: d.registry,
		Publisher: d.publisher, Ingester: ingester, Trees: d.trees, Names: d.names, Limits: limits,
		Jobs: d.jobs, ScrubDays: c.ScrubDays, Room: with.reserve.Room, Log: d.log})
	d.starts = startup.New(startup.Config{Catalog: d.catalog, Objects: d.objects, Publisher: d.publisher,
		Encoders: with.encoders, Bounds: with.starts,
		Images: d.images, Jobs: d.jobs, Limit: int64(c.StartupBytes), Log: d.log})
	d.attacher = attach.New(attach.Config{Catalog: d.catalog, Objects: d.objects, Registries: with.registries,
		Jobs: d.jobs, Keys: d.keys, Limits: limits, TempDir: d.publisher.TempDir, Log: d.log})
	d.holders = holders.New(d.catalog.Holders, time.Duration(c.KeepHeldDays)*24*time.Hour, d.log)
	d.holders.Senders = with.senders
	d.expiry = expiry.New(retention.Policy{Rules: c.Retention, MaxPercent: c.RetentionMaxPercent}, d.catalog, d.names,
		d.jobs, d.log)
	d.collector = collect.New(collect.Config{Catalog: d.catalog, Objects: d.objects, Publisher: d.publisher,
		Encoders: with.encoders, Holders: d.holders, Room: with.reserve.Room,
		Blobs: blobs.New(blobs.Config{Catalog: d.catalog, Registry: d.registry, Upstream: d.upstream,
			Keep: images.KeepBlobs(c.KeepBlobs), Log: d.log}),
		Every: time.Duration(c.GC.EveryMinutes) * time.Minute,
		Delay: time.Duration(c.GC.DelayMinutes) * time.Minute,
		Keep:  time.Duration(c.GC.KeepMinutes) * time.Minute, Log: d.log}, d.jobs)
	d.through = &pullthrough.Domain{Registry: d.registry, Handler: d.registryHandler(), Pass: d.upstream.Pass,
		Ingest: d.ingestPulled}
	if with.mirror != nil && slices.Contains(c.Export.Domains, d.name) {
		d.exporter = export.New(export.Config{Place: with.mirror, Domain: d.name, Catalog: d.catalog,
			Objects: d.objects, Images: nodeImages{d.trees, d.images, d.catalog, d.keys, c.RegistryHosts},
			Holders: d.holders, Keys: d.keys.public(), Jobs: d.jobs, Scratch: c.scratch(), Limiter: with.rate,
			Log: d.log})
	}
	d.jobs.Around(with.reserve.Job, images.JobKind, catalog.LayoutJob, startup.RecompressJob,
		attach.JobKind)
}

// imageIsReady makes the mirror of the domain, if there is one, follow a new image.
func (d *domain) imageIsReady(ctx context.Context) {
	if d.exporter != nil {
		d.noteStart(ctx, d.exporter.StartForNew(ctx))
	}
}

// awaitLayout waits until the first layout of a new image is made or has failed, or ctx ends.
func (d *domain) awaitLayout(ctx context.Context, image catalog.Image) error {
	return d.starts.Await(ctx, image.Tree)
}

// look makes the hub look at the sources of what hooks have heard of.
func (d *domain) look(ctx context.Context, wishes []hooks.Wish) error {
	wanted := make([]wants.Wish, len(wishes))
	for i, w := range wishes {
		wanted[i] = wants.Wish{Source: w.Source, By: wants.Hook(w.Hook), Platforms: w.Platforms, MayRemove: w.MayRemove}
	}
	return d.wants.Look(ctx, wanted...)
}

// Close ends the domain's background work and closes its stores.
func (d *domain) Close() error {
	d.end()
	var errs []error
	for _, c := range slices.Backward(d.closers) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// watchEvery is the time between two checks whether this hub may still use its catalog: a newer hub
// may have migrated it.
const watchEvery = time.Minute

// run starts the domain's background work in a group. The work ends when ctx ends.
func (d *domain) run(ctx context.Context, group *errgroup.Group) {
	group.Go(func() error { return d.publisher.Run(ctx) })
	group.Go(d.trees.Run)
	group.Go(func() error { return d.catalog.KeepSizes(ctx, d.log) })
	group.Go(func() error { return d.catalog.Watch(ctx, watchEvery, d.log) })
	group.Go(func() error { return d.starts.Run(ctx) })
	group.Go(func() error { return d.holders.Run(ctx) })
	group.Go(func() error { return d.events.Run(ctx) })
	group.Go(func() error { return d.hooks.Run(ctx) })
	group.Go(func() error { return d.wishlists.Run(ctx) })
	group.Go(func() error { return d.attacher.Run(ctx) })
	if d.exporter != nil {
		group.Go(func() error {
			d.noteStart(ctx, d.exporter.Start(ctx))
			return nil
		})
	}
}

// noteStart logs the error of a start of the exporter, if there is one.
func (d *domain) noteStart(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		d.log.Warn("the mirror follows some minutes later", "err", err)
	}
}

// registryUses records in the catalog on which blobs clients of the registry rely.
type registryUses struct{ *catalog.Blobs }

// IsDeleting implements registry.Uses.
func (registryUses) IsDeleting(err error) bool { return errors.Is(err, catalog.ErrDeleting) }

// registryEvents receives the changes that clients of the registry make.
type registryEvents struct {
	*names.Service
	*quota.Checker
}

var _ registry.Events = registryEvents{}

// userImages shows, adds, verifies and removes images for package admin.
type userImages struct {
	*images.Service
	*verify.Verifier
	wants *wants.Service
}

var _ admin.Images = userImages{}

// Remove removes a name and its images. Unless force is true, it refuses that while lists or hooks
// want the name.
func (u userImages) Remove(ctx context.Context, name string, force bool) error {
	return u.wants.Remove(ctx, name, force)
}

// api answers nodes and users about the domain.
func (d *domain) api(with *shared) *answer.Mux {
	api := answer.NewMux(d.name, d.log)
	nodes := serve.Server{Catalog: d.catalog, Objects: d.objects,
		Images: nodeImages{d.trees, d.images, d.catalog, d.keys, d.config.RegistryHosts}, Traces: d.starts,
		Holders: d.holders, Bodies: with.bodies, Keys: d.keys.public(), Proxies: with.proxies, Log: d.log}
	nodes.Register(api)
	users := admin.Server{Domain: d.name, DomainOf: d.config.domainOf, Catalog: d.catalog,
		Images: userImages{d.images, d.verifier, d.wants}, Jobs: d.jobs, ImageJobs: images.JobKind,
		Starts: d.starts, Holders: d.holders, Events: d.events, Retention: d.expiry, Checker: d.checker,
		Wishlists: d.wishlists,
		Collector: d.collector,
		Bodies:    with.bodies, Keys: d.keys.public(), Log: d.log}
	users.Register(api)
	return api
}
