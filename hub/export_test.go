package hub

import (
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lighter/hub/blobs"
	"lighter/hub/catalog"
	"lighter/hub/collect"
	"lighter/hub/fsck"
	"lighter/hub/images"
	"lighter/hub/ingest"
	"lighter/hub/publish"
	"lighter/hub/registry"
	"lighter/hub/startup"
	"lighter/hub/verify"
)

// External tests see a hub's parts through these.

func (h *Hub) Catalog() *catalog.Catalog     { return h.main.catalog }
func (h *Hub) Collector() *collect.Collector { return h.main.collector }

func (h *Hub) Starts() *startup.Service        { return h.main.starts }
func (h *Hub) Checker() *fsck.Checker          { return h.main.checker }
func (h *Hub) Verifier() *verify.Verifier      { return h.main.verifier }
func (h *Hub) PublicKeys() []ed25519.PublicKey { return h.main.keys.public() }
func (h *Hub) Log() *slog.Logger               { return h.log }

// Blobs returns the collector of the registry's blobs.
func (h *Hub) Blobs() *blobs.Collector { return h.main.blobs }

// SetLeases sets how long a process that has stopped keeps its jobs and claims.
func (h *Hub) SetLeases(d time.Duration) { h.main.jobs.Lease, h.main.publisher.Lease = d, d }

// Owner is a name under which the hub could run jobs and publish.
func (h *Hub) Owner() string {
	name, err := owner(h.config.Root)
	if err != nil {
		panic(err)
	}
	return name + "/" + rand.Text()
}

func (h *Hub) Images() *images.Service       { return h.main.images }
func (h *Hub) Trees() *ingest.Trees          { return h.main.trees }
func (h *Hub) Publisher() *publish.Publisher { return h.main.publisher }

func (h *Hub) Registry() *registry.Registry { return h.main.registry }
func (h *Hub) Config() Config               { return h.config }

// PublicHandler and AdminHandler answer as the hub does at listen and at an admin_listen with TCP.
func (h *Hub) PublicHandler() http.Handler { return h.public(h.handler()) }
func (h *Hub) AdminHandler() http.Handler  { return h.access.Admin(h.handler()) }

// Collectors are the hub's own metrics.
func (h *Hub) Collectors() []prometheus.Collector {
	return []prometheus.Collector{h.view, figures{h.main}, h.view.requests, h.view.seconds}
}

// SetStopping makes the hub unready, as at its end.
func (h *Hub) SetStopping() { h.view.stopping.Store(true) }

// SetMaxConnections sets the bound of open connections, before Serve.
func (h *Hub) SetMaxConnections(n int) { h.maxConnections = n }

func (c *Config) ParseProxies() ([]netip.Prefix, error) { return c.proxies() }
func (c *Config) ListenAdmin() (net.Listener, error)    { return c.listenAdmin() }

const (
	UnixPrefix   = unixPrefix
	MetricPrefix = metricPrefix
)

var (
	ObjectsDir  = objectsDir
	ScratchDir  = scratchDir
	RegistryDir = registryDir
	KeyFile     = keyFile
)
