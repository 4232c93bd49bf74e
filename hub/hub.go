// Package hub runs a hub: one process with one directory, which ingests images and answers nodes.
// It puts the hub's packages together, and owns what they share: the directory, the signing keys,
// the HTTP servers, metrics, and the order of starting and ending.
//
//   - hub.go (Hub): the process, with its servers and the bounds that all domains share.
//   - domain.go (domain): the stores, keys and services of one domain; domains.go: which
//     repositories a domain has, and where its catalog is; places.go: where its other files are.
//
// The package is large because whatever needs the whole configuration is in it: its checks, the
// order of opening and closing, domains, signing keys, addresses and the metrics of all parts.
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
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/buildinfo"
	"lighter/hub/access"
	"lighter/hub/answer"
	"lighter/hub/away"
	"lighter/hub/hooks"
	"lighter/hub/objects"
	"lighter/hub/outage"
	"lighter/hub/registry"
	"lighter/hub/rootdir"
	"lighter/wire"
)

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeader         = 64 << 10 // bytes of a request's header
	// maxConnections bounds the open connections of each address. One takes some 20 KB. A node has
	// at most 512, and mostly far fewer. Further connections wait in the kernel's queue.
	maxConnections = 16_384
)

// Hub is an open hub: a process, with what all of its domains share.
type Hub struct {
	config  Config
	tls     *tls.Config // nil: plain HTTP
	log     *slog.Logger
	plain   *slog.Logger // log without the bounds of outages
	closers []io.Closer  // in the order of opening
	outages *outage.Watch
	shared  *shared
	domains []*domain // the first is the default domain
	access  *access.Policy
	hooks   *hooks.Server
	view    *view
	end     context.CancelFunc // ends the background work

	maxConnections int // the constant of this name; fewer in tests
}

// memoryTarget is the soft memory limit of the Go runtime, in bytes. While the tree of an image of
// a million files is made, half of this memory is in use.
const memoryTarget = 896 << 20

// Run runs a hub until ctx ends. It sets the soft memory limit of the process, unless GOMEMLIMIT is
// set.
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
		err = fmt.Errorf("%w: end what listens there, or choose another address with --listen", err)
		return errors.Join(err, h.Close())
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
	h := &Hub{config: c, plain: log, tls: tlsConfig, access: policy, maxConnections: maxConnections}
	h.outages = outage.New(log, outage.Store{Name: databaseStore, Ping: h.pingDatabase},
		outage.Store{Name: bucketStore, Ping: h.pingBucket})
	h.log = h.outages.Logger()
	// When ctx ends, an open hub goes on until it has answered the requests in flight.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	h.end = end
	opened := context.AfterFunc(ctx, end)
	err = h.open(life)
	opened()
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Hub) open(ctx context.Context) (err error) {
	lock, err := rootdir.Prepare(h.config.Root)
	if err != nil {
		return err
	}
	h.closers = append(h.closers, lock)
	if h.shared, err = newShared(&h.config, h.log); err != nil {
		return err
	}
	h.closers = append(h.closers, h.shared.registries)
	if h.shared.owner, err = h.config.owner(lock); err != nil {
		return err
	}
	h.shared.through = h.newPullThrough(ctx)
	if h.shared.pushes, err = h.newPushThrough(ctx); err != nil {
		return err
	}
	defer func() { h.closers = append(h.closers, h.shared.through, h.shared.pushes) }() // they use the domains
	for _, name := range h.config.domainNames() {
		d, err := openDomain(ctx, name, h.config, h.shared, h.log)
		if err != nil {
			return err
		}
		h.domains, h.closers = append(h.domains, d), append(h.closers, d)
	}
	if h.hooks, err = hooks.NewServer(h.config.Hooks, h.shared.bodies, h.inboxOf, h.log); err != nil {
		return err
	}
	h.view = newView(h.domains, h.shared, h.hooks, h.outages, h.plain)
	return nil
}

// pingDatabase returns an error if the database does not answer. All domains have the same database
// server, or files in the same directory.
func (h *Hub) pingDatabase(ctx context.Context) error { return h.domains[0].catalog.Ping(ctx) }

// pingBucket returns an error if the bucket does not answer.
func (h *Hub) pingBucket(ctx context.Context) error {
	err := h.domains[0].objects.Ping(ctx)
	if err != nil && !away.Is(err) {
		err = fmt.Errorf("%w: %w", objects.ErrUnavailable, err)
	}
	return err
}

// Close ends the hub's background work and closes its stores and locks.
func (h *Hub) Close() error {
	h.end()
	var errs []error
	for _, c := range slices.Backward(h.closers) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// handler answers all requests. It does not check who makes them: package access does.
func (h *Hub) handler() http.Handler {
	mux := http.NewServeMux()
	h.view.register(mux)
	mux.Handle(wire.HooksPrefix, h.hooks)
	mux.Handle("/v2/", h.shared.reserve.Uploads(h.shared.through.Handler(h.registries())))
	for _, d := range h.domains {
		mux.Handle(wire.Prefix+"/"+d.name+"/", d.api(h.shared))
	}
	mux.HandleFunc(wire.Prefix+"/{domain}/", func(w http.ResponseWriter, req *http.Request) {
		answer.Error(w, http.StatusNotFound, fmt.Sprintf("this hub has no domain %q: "+
			"add it to the hub's configuration, as a table [[domain]] with name and repositories, "+
			"or use another one (--domain; domain in a node's configuration)", req.PathValue("domain")))
	})
	mux.Handle("/", answer.NewMux(wire.DefaultDomain, h.log)) // answers 404 for unknown paths
	return mux
}

// registries passes a request of a registry's client to the domain of its repository. The default
// domain answers requests that name no repository, such as those for the list of repositories.
func (h *Hub) registries() http.Handler {
	byDomain := map[string]http.Handler{}
	for _, d := range h.domains {
		byDomain[d.name] = d.registryHandler()
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		domain := wire.DefaultDomain
		if repository := registry.RepositoryOf(req.URL.Path); repository != "" {
			domain = h.config.domainOf(repository)
		}
		byDomain[domain].ServeHTTP(w, req)
	})
}

// inboxOf returns the inbox of the domain to which a repository belongs.
func (h *Hub) inboxOf(name string) *hooks.Inbox {
	domain := wire.DefaultDomain
	if ref, err := wire.ParseName(name); err == nil {
		domain = h.config.domainOf(ref.Repository)
	}
	for _, d := range h.domains {
		if d.name == domain {
			return d.hooks
		}
	}
	return h.domains[0].hooks
}

// public returns the handler of the address listen. It accepts changes only if there is no
// admin_listen.
func (h *Hub) public(all http.Handler) http.Handler {
	if h.config.AdminListen != "" {
		return h.watched(h.fronted(h.access.ReadOnly(all)))
	}
	return h.watched(h.fronted(h.access.Public(all)))
}

// admin returns the handler of the address admin_listen. The file mode of a Unix socket decides who
// can connect to it.
func (h *Hub) admin(all http.Handler) http.Handler {
	if strings.HasPrefix(h.config.AdminListen, unixPrefix) {
		return h.watched(all)
	}
	return h.watched(h.fronted(h.access.Admin(all)))
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
// ends. Then it accepts no further requests, and gives its jobs back, so that another process can
// run them. It completes requests in flight, for drain_seconds at most. The background work lasts
// until then.
func (h *Hub) Serve(ctx context.Context, listener net.Listener) error {
	admin, err := h.config.listenAdmin()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	all := h.handler()
	h.log.Info("hub started", "root", h.config.Root, "address", listener.Addr(), "admin", h.config.AdminListen,
		"keys", h.domains[0].keys.text(), "release", buildinfo.Release())
	for _, d := range h.domains[1:] {
		h.log.Info("domain opened", "domain", d.name, "keys", d.keys.text())
	}
	if h.config.Open && h.config.AdminTokenFile == "" {
		h.log.Warn("everybody who reaches the hub may make changes (open)",
			"address", cmp.Or(h.config.AdminListen, listener.Addr().String()))
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.shared.runner.Run(ctx) })
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group.Go(func() error { return h.shared.spare.Run(work) })
	group.Go(func() error { return h.outages.Run(work) })
	for _, d := range h.domains {
		d.run(work, group)
	}
	var servers sync.WaitGroup
	servers.Go(h.answer(ctx, group, listener, h.public(all)))
	if admin != nil {
		servers.Go(h.answer(ctx, group, admin, h.admin(all)))
	}
	group.Go(func() error {
		servers.Wait()
		end()
		h.end()
		return nil
	})
	err = group.Wait()
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// answer starts an HTTP server on a listener, in the group. drain waits for the end of ctx, and
// ends the server.
func (h *Hub) answer(
	ctx context.Context, group *errgroup.Group, listener net.Listener, handler http.Handler,
) (drain func()) {
	server := h.server(handler)
	isUnix := listener.Addr().Network() == "unix"
	listener = newConnections(server, listener, h.maxConnections)
	group.Go(func() error {
		if h.tls != nil && !isUnix {
			return server.ServeTLS(listener, "", "")
		}
		return server.Serve(listener)
	})
	return func() {
		<-ctx.Done()
		h.view.stopping.Store(true)
		started := time.Now()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(h.config.DrainSeconds)*time.Second)
		defer cancel()
		if server.Shutdown(end) != nil {
			h.log.Warn("the hub ends before all requests were answered (drain_seconds)", "address", listener.Addr(),
				"duration", time.Since(started).Round(time.Second))
			_ = server.Close() // ends requests that still wait for an image; the connections have no data to lose
		}
	}
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
