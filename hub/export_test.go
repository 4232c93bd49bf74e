package hub

import (
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lighter/hub/attach"
	"lighter/hub/blobs"
	"lighter/hub/catalog"
	"lighter/hub/collect"
	"lighter/hub/export"
	"lighter/hub/fsck"
	"lighter/hub/holders"
	"lighter/hub/images"
	"lighter/hub/ingest"
	"lighter/hub/jobs"
	"lighter/hub/names"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/registry"
	"lighter/hub/startup"
	"lighter/hub/uploads"
	"lighter/hub/verify"
	"lighter/hub/wants"
)

// Tests of package hub_test reach a hub's parts through the following functions.

// In returns the hub with one of its domains only.
func (h *Hub) In(name string) *Hub {
	of := *h
	of.domains = slices.DeleteFunc(slices.Clone(h.domains), func(d *domain) bool { return d.name != name })
	return &of
}

// OfDomain returns the configuration with the places of a domain.
func (c *Config) OfDomain(domain string) (Config, error) { return c.ofDomain(domain) }

func (h *Hub) Catalog() *catalog.Catalog     { return h.domains[0].catalog }
func (h *Hub) Collector() *collect.Collector { return h.domains[0].collector }

func (h *Hub) Uploads() *uploads.Splitter      { return h.domains[0].uploads }
func (h *Hub) Pushes() *uploads.Splitter       { return h.domains[0].pushes }
func (h *Hub) Starts() *startup.Service        { return h.domains[0].starts }
func (h *Hub) Checker() *fsck.Checker          { return h.domains[0].checker }
func (h *Hub) Verifier() *verify.Verifier      { return h.domains[0].verifier }
func (h *Hub) PublicKeys() []ed25519.PublicKey { return h.domains[0].keys.public() }
func (h *Hub) Log() *slog.Logger               { return h.log }

// Paths returns the paths of the routes about a domain.
func (h *Hub) Paths() []string { return h.domains[0].api(h.shared).Paths() }

// Endpoints are the values of the label "endpoint" of metrics. EndpointOf returns the value of a
// path.
var (
	Endpoints  = endpoints
	EndpointOf = endpointOf
)

// Jobs returns the queue of the hub's jobs.
func (h *Hub) Jobs() *jobs.Queue { return h.domains[0].jobs }

// Blobs returns the collector of the registry's blobs.
func (h *Hub) Blobs() *blobs.Collector { return h.domains[0].collector.Blobs }

// SetLeases sets how long a process that has stopped still owns its jobs, and its claims of
// objects.
func (h *Hub) SetLeases(jobs, claims time.Duration) {
	h.domains[0].jobs.Lease, h.domains[0].publisher.Lease = jobs, claims
}

// SetDueInterval sets the time between two searches for due periodic jobs. Call it before Serve.
func (h *Hub) SetDueInterval(d time.Duration) { h.domains[0].jobs.DueInterval = d }

// Owner returns a new name under which this hub may run jobs and publish.
func (h *Hub) Owner() string { return h.shared.owner + "/" + rand.Text() }

func (h *Hub) Tables() *objects.Tables   { return h.domains[0].objects.Tables }
func (h *Hub) Senders() *holders.Senders { return h.domains[0].holders.Senders }

func (h *Hub) Images() *images.Service       { return h.domains[0].images }
func (h *Hub) Names() *names.Service         { return h.domains[0].names }
func (h *Hub) Wants() *wants.Service         { return h.domains[0].wants }
func (h *Hub) Trees() *ingest.Trees          { return h.domains[0].trees }
func (h *Hub) Publisher() *publish.Publisher { return h.domains[0].publisher }

func (h *Hub) Registry() *registry.Registry { return h.domains[0].registry }
func (h *Hub) Config() Config               { return h.config }

// PublicHandler and AdminHandler answer as the hub does at listen and at an admin_listen with TCP.
func (h *Hub) PublicHandler() http.Handler { return h.public(h.handler()) }
func (h *Hub) AdminHandler() http.Handler  { return h.access.Admin(h.handler()) }

// Collectors returns the collectors of the hub's own metrics.
func (h *Hub) Collectors() []prometheus.Collector {
	return []prometheus.Collector{h.view, figures{h.domains[0]}, h.view.requests, h.view.seconds}
}

// SetStopping makes the hub not ready, as when it shuts down.
func (h *Hub) SetStopping() { h.view.stopping.Store(true) }

// SetMaxConnections sets the bound of open connections of each address. Call it before Serve.
func (h *Hub) SetMaxConnections(n int) { h.maxConnections = n }

func (c *Config) ParseProxies() ([]netip.Prefix, error) { return c.proxies() }
func (c *Config) ListenAdmin() (net.Listener, error)    { return c.listenAdmin() }

const (
	UnixPrefix   = unixPrefix
	MetricPrefix = metricPrefix
)

// Attacher returns what attaches indexes to images of other registries.
func (h *Hub) Attacher() *attach.Service { return h.domains[0].attacher }

// Exporter returns what keeps the domain's mirror up to date.
func (h *Hub) Exporter() *export.Exporter { return h.domains[0].exporter }
