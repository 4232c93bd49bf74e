package monitor

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lighter/logqueue"
	"lighter/node/fuse"
	"lighter/node/mount"
	"lighter/node/report"
)

// metricPrefix is the prefix of the node's own metrics. docs/metrics.md describes them all.
const metricPrefix = "lighter_node_"

// figures are the values of one scrape.
type figures struct {
	status  report.Status
	devices fuse.ServerStats
	ready   bool
	dropped int64 // log lines
}

// metric is a metric without labels.
type metric struct {
	name string
	kind prometheus.ValueType
	help string
	of   func(f *figures) float64
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

var metrics = []metric{
	{"ready", gauge, "1 if the node is ready, as /readyz says.",
		func(f *figures) float64 { return truth(f.ready) }},
	{"taken_over", gauge, "1 if this daemon took over a previous daemon's devices.",
		func(f *figures) float64 { return truth(f.status.TakenOver) }},
	{"devices_kept", gauge, "0 if no keeper holds the devices: if the daemon ends now, containers get errors.",
		func(f *figures) float64 { return truth(f.status.Keeper.Error == "") }},
	{"keepers_replaced_total", counter, "Keepers that ended while the daemon ran, and were replaced.",
		func(f *figures) float64 { return float64(f.status.Keeper.Replaced) }},
	{"resent_reads_total", counter, "Reads that a previous daemon had not answered, and the kernel sent again.",
		func(f *figures) float64 { return float64(f.devices.Resent) }},
	{"reads_in_flight", gauge, "Reads that are being answered.",
		func(f *figures) float64 { return float64(f.devices.Active) }},
	{"reads_in_flight_bytes", gauge, "Bytes that reads in flight ask for.",
		func(f *figures) float64 { return float64(f.devices.ActiveBytes) }},
	{"reads_waiting", gauge, "Reads that wait for admission.",
		func(f *figures) float64 { return float64(f.devices.Queued) }},
	{"kernel_requests", gauge, "Requests that the kernel counts as unanswered, including blocked ones; -1 if unknown.",
		func(f *figures) float64 { return float64(f.devices.InKernel) }},
	{"oldest_read_seconds", gauge, "Age of the oldest unanswered read.",
		func(f *figures) float64 { return f.devices.Oldest.Seconds() }},

	{"pulls_without_hub_total", counter, "Lookups and indexes that no hub delivered in time: images were unpacked as usual.",
		func(f *figures) float64 { return float64(f.status.NoHub) }},
	{"unit_requests_total", counter, "Requests for units and chunks.",
		func(f *figures) float64 { return float64(f.status.Fetched.Requests) }},
	{"unit_received_bytes_total", counter, "Bytes of units received, compressed.",
		func(f *figures) float64 { return float64(f.status.Fetched.Bytes) }},
	{"unit_retries_total", counter, "Requests for units that were repeated.",
		func(f *figures) float64 { return float64(f.status.Fetched.Retries) }},
	{"verification_failures_total", counter, "Answers with wrong bytes. None of them reached a reader.",
		func(f *figures) float64 { return float64(f.status.Fetched.Invalid) }},
	{"unit_bytes_in_flight", gauge, "Bytes of units in flight, compressed.",
		func(f *figures) float64 { return float64(f.status.Fetched.InFlight.Bytes) }},
	{"unit_bytes_unstored", gauge, "Bytes of units that have arrived and are not stored yet, uncompressed.",
		func(f *figures) float64 { return float64(f.status.Fetched.Storing) }},
	{"unstored_units_total", counter, "Units that the cache was too slow to store; they are fetched again when needed.",
		func(f *figures) float64 { return float64(f.status.Fetched.Unstored) }},

	{"starts_recorded_total", counter, "Starts of containers whose reads were recorded.",
		func(f *figures) float64 { return float64(f.status.Recording.Recorded) }},
	{"starts_in_recording", gauge, "Starts that are being recorded.",
		func(f *figures) float64 { return float64(f.status.Recording.InWork) }},
	{"traces_reported_total", counter, "Traces of starts that a hub accepted.",
		func(f *figures) float64 { return float64(f.status.Recording.Reported) }},
	{"traces_dropped_total", counter, "Traces of starts that no hub accepted, or that exceeded the queue.",
		func(f *figures) float64 { return float64(f.status.Recording.Dropped) }},
	{"startup_received_bytes_total", counter, "Bytes of startup packs received, compressed.",
		func(f *figures) float64 { return float64(f.status.Ahead.Startup.Fetched) }},
	{"startup_brought_bytes_total", counter, "Bytes of chunks for which startup packs were fetched, uncompressed.",
		func(f *figures) float64 { return float64(f.status.Ahead.Startup.Brought) }},
	{"startup_used_bytes_total", counter, "Bytes of those chunks that were read later.",
		func(f *figures) float64 { return float64(f.status.Ahead.Startup.Used) }},
	{"startup_loaded_bytes_total", counter, "Bytes of startup packs' cached chunks that were read ahead into memory.",
		func(f *figures) float64 { return float64(f.status.Ahead.Loaded) }},
	{"around_brought_bytes_total", counter, "Bytes of neighbouring chunks that were fetched with a miss, uncompressed.",
		func(f *figures) float64 { return float64(f.status.Ahead.Neighbours.Brought) }},
	{"around_used_bytes_total", counter, "Bytes of those chunks that were read later.",
		func(f *figures) float64 { return float64(f.status.Ahead.Neighbours.Used) }},
	{"link_bytes_per_second", gauge, "Estimated bandwidth of the hubs: the highest recent rate.",
		func(f *figures) float64 { return float64(f.status.Fetched.Link.Rate) }},
	{"link_round_trip_seconds", gauge, "Estimated round-trip time: the lowest recent time to the first byte.",
		func(f *figures) float64 { return f.status.Fetched.Link.RoundTrip.Seconds() }},

	{"cache_bytes", gauge, "Bytes that the cache takes on the disk.",
		func(f *figures) float64 { return float64(f.status.Cache.Used) }},
	{"cache_limit_bytes", gauge, "Maximum of cache_bytes.",
		func(f *figures) float64 { return float64(f.status.Cache.Limit) }},
	{"cache_room_bytes", gauge, "Bytes that the cache may take now: its limit, or less while its disk is short.",
		func(f *figures) float64 { return float64(f.status.Cache.Room) }},
	{"cache_disk_free_bytes", gauge, "Free bytes of the cache's disk.",
		func(f *figures) float64 { return float64(f.status.Cache.Free) }},
	{"cache_loading_bytes", gauge, "Bytes of the cache that are not loaded yet after a start; reads of them are fetched.",
		func(f *figures) float64 { return float64(f.status.Cache.Loading) }},
	{"cache_pinned_bytes", gauge, "Bytes of the cache that are pinned, once all pinned images are complete.",
		func(f *figures) float64 { return float64(f.status.Cache.Pinned) }},
	{"cache_off", gauge, "1 if there is no cache, or its disk refuses writes, fails reads or does not answer.",
		func(f *figures) float64 { return truth(f.status.Cache.Off() != "") }},
	{"cache_evicted_bytes_total", counter, "Bytes of the disk that evictions freed.",
		func(f *figures) float64 { return float64(f.status.Cache.Evicted) }},
	{"cache_failed_reads_total", counter, "Chunks that the disk failed to read; they are fetched again.",
		func(f *figures) float64 { return float64(f.status.Cache.Unread) }},
	{"cache_unanswered_total", counter, "Reads and writes that the disk did not answer in time; reads are fetched.",
		func(f *figures) float64 { return float64(f.status.Cache.Hung) }},
	{"cache_chunks", gauge, "Chunks in the cache.",
		func(f *figures) float64 { return float64(f.status.Cache.Chunks) }},
	{"cache_hits_total", counter, "Lookups of chunks in the cache that found them.",
		func(f *figures) float64 { return float64(f.status.Cache.Hits) }},
	{"cache_misses_total", counter, "Lookups of chunks in the cache that did not find them.",
		func(f *figures) float64 { return float64(f.status.Cache.Misses) }},
	{"cache_damaged_chunks_total", counter, "Chunks that the disk returned damaged; they are fetched again.",
		func(f *figures) float64 { return float64(f.status.Cache.Damaged) }},
	{"cache_scrubbed_bytes_total", counter, "Bytes that scrubs verified.",
		func(f *figures) float64 { return float64(f.status.Cache.Scrubbed) }},
	{"cache_failed_writes_total", counter, "Chunks that the disk failed to write.",
		func(f *figures) float64 { return float64(f.status.Cache.Failed) }},
	{"completion_received_bytes_total", counter, "Bytes of units received to complete images, compressed.",
		func(f *figures) float64 { return float64(f.status.Completion.Fetched) }},
	{"completion_left_bytes", gauge, "Bytes of missing chunks of the image that is being completed.",
		func(f *figures) float64 { return float64(f.status.Completion.Left) }},
	{"completion_waits", gauge, "1 while completion waits: for its schedule, or because disk, cache or memory are short.",
		func(f *figures) float64 { return truth(f.status.Completion.Waits != "") }},
	{"local_device_bytes", gauge, "Bytes of the disk that local devices take, as part of the cache's.",
		func(f *figures) float64 { return float64(f.status.Cache.External) }},
	{"local_mounts", gauge, "Mounted trees whose newest mount reads a local device.",
		func(f *figures) float64 { return float64(localMounts(&f.status)) }},
	{"leftovers", gauge, "Files and directories of the node that could not be cleaned up or written.",
		func(f *figures) float64 { return float64(len(f.status.Leftovers)) }},
	{"unsigned_statements", gauge, "Statements that a pinned key has not signed, for the key that lacks most.",
		func(f *figures) float64 { return float64(unsigned(&f.status)) }},
	{"log_lines_dropped_total", counter, "Log lines that were dropped because nothing read the log.",
		func(f *figures) float64 { return float64(f.dropped) }},
	{"broken_trees", gauge, "Trees that could not be recovered, or whose metadata image is damaged under its mount.",
		func(f *figures) float64 { return float64(len(f.status.Lost)) }},
	{"refused_statements", gauge, "Chains in use whose statement on the disk cannot be verified; no new pull uses them.",
		func(f *figures) float64 { return float64(len(f.status.Refused)) }},
}

func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Values of labels. Their number does not grow with the containers that run.
const (
	fromCache = "cache"
	fromHub   = "hub"
	urgent    = "reader"
	ahead     = "ahead"
)

var (
	faultSeconds = describe("fault_duration_seconds",
		"Time from the kernel's request to the answer, by origin of the bytes.", "origin")
	readBytes   = describe("read_bytes_total", "Bytes that the kernel read, by origin.", "origin")
	failedReads = describe("failed_reads_total", "Reads that ended with an input/output error, by reason.", "reason")
	mounts      = describe("mounts", "Mounted trees, by mount mode.", "mode")
	images      = describe("images", "Images with snapshots on this machine, by whether they are lazy.", "lazy")
	inFlight    = describe("units_in_flight",
		"Requests for units in flight, for waiting readers or ahead of reads.", "for")
	waiting     = describe("units_waiting", "Units that wait to be requested.", "for")
	hubUp       = describe("hub_up", "0 while a hub is not used because it failed.", "hub")
	hubRequests = describe("hub_requests_total", "Requests to a hub: lookups, indexes, locations, units.", "hub")
	hubFailures = describe("hub_failures_total", "Requests that a hub failed: no answer, or a wrong one.", "hub")
	hubBytes    = describe("hub_received_bytes_total",
		"Bytes received from a hub, compressed: units, indexes, locations.", "hub")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(metricPrefix+name, help, labels, nil)
}

// collector turns figures into metrics for each scrape.
type collector struct {
	figures func() (figures, bool)
}

// Describe implements prometheus.Collector. It describes nothing: the mount modes are not known in
// advance.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	f, ok := c.figures()
	if !ok {
		return
	}
	for _, m := range metrics {
		out <- prometheus.MustNewConstMetric(describe(m.name, m.help), m.kind, m.of(&f))
	}
	put := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, label string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, label)
	}
	out <- histogram(f.devices.Cached, fromCache)
	out <- histogram(f.devices.Fetched, fromHub)
	put(readBytes, counter, float64(f.devices.CachedBytes), fromCache)
	put(readBytes, counter, float64(f.devices.FetchedBytes), fromHub)
	for _, reason := range fuse.Reasons {
		put(failedReads, counter, float64(f.devices.Failed[reason]), reason)
	}
	for mode, n := range mountModes(&f.status) {
		put(mounts, gauge, float64(n), mode)
	}
	var lazy, plain int
	for _, image := range f.status.Images {
		if image.Lazy {
			lazy++
		} else {
			plain++
		}
	}
	put(images, gauge, float64(lazy), "true")
	put(images, gauge, float64(plain), "false")
	now := f.status.Fetched.InFlight
	put(inFlight, gauge, float64(now.Urgent), urgent)
	put(inFlight, gauge, float64(now.Background), ahead)
	put(waiting, gauge, float64(now.UrgentWaiting), urgent)
	put(waiting, gauge, float64(now.BackgroundWaiting), ahead)
	for _, hub := range f.status.Hubs {
		put(hubUp, gauge, truth(hub.Up), hub.URL)
		put(hubRequests, counter, float64(hub.Requests), hub.URL)
		put(hubFailures, counter, float64(hub.Failures), hub.URL)
		put(hubBytes, counter, float64(hub.Bytes), hub.URL)
	}
}

// histogram converts a Latency: a Prometheus bucket includes those before it.
func histogram(l fuse.Latency, origin string) prometheus.Metric {
	buckets := make(map[float64]uint64, fuse.LatencyBuckets)
	var sum uint64
	for i := range fuse.LatencyBuckets {
		sum += uint64(l.Counts[i])
		buckets[fuse.LatencyBound(i).Seconds()] = sum
	}
	return prometheus.MustNewConstHistogram(faultSeconds, uint64(l.Count()), l.Sum.Seconds(), buckets, origin)
}

// newRegistry returns the registry of a node: its own metrics, and those of the process and of Go.
func newRegistry(figures func() (figures, bool)) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{figures}, collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

func (s *Server) metricsHandler() http.Handler {
	return promhttp.HandlerFor(newRegistry(s.figures), promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout,
	})
}

// figures gathers the figures of a scrape, once the node's parts exist.
func (s *Server) figures() (figures, bool) {
	n := s.node.Load()
	if n == nil {
		return figures{}, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	status, err := n.Status(ctx)
	if err != nil {
		s.log.Warn("metrics of images are missing", "err", err)
	}
	ready := s.reason.Load() == nil
	return figures{status: status, devices: n.Devices(), ready: ready, dropped: logqueue.Dropped(s.log)}, true
}

// mountModes counts the mounted trees by mount mode.
func mountModes(s *report.Status) map[string]int {
	modes := map[string]int{}
	for _, mode := range []mount.Mode{mount.File, mount.Loop} {
		modes[string(mode)] = 0
	}
	for _, m := range s.Mounts {
		modes[string(m.Mode)]++
	}
	return modes
}

// unsigned counts the statements that a pinned key has not signed, for the key that lacks most.
func unsigned(s *report.Status) (most int) {
	for _, signer := range s.Signers {
		most = max(most, len(signer.Missing))
	}
	return most
}

// localMounts counts the mounted trees that the kernel reads without the daemon.
func localMounts(s *report.Status) (n int) {
	for _, m := range s.Mounts {
		if m.Local {
			n++
		}
	}
	return n
}
