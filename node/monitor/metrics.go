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

// metricPrefix begins the name of each of the node's own metrics. docs/metrics.md
// has them all.
const metricPrefix = "lighter_node_"

// figures are what one scrape shows.
type figures struct {
	status  report.Status
	devices fuse.ServerStats
	ready   bool
	dropped int64 // lines of the log
}

// metric is one that is a single figure.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	of         func(f *figures) float64
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// metrics are those that have no labels.
var metrics = []metric{
	{"ready", "1 if the node is ready, as /readyz says.", gauge, func(f *figures) float64 { return truth(f.ready) }},
	{"taken_over", "1 if this daemon took the devices of a former one over.", gauge, func(f *figures) float64 { return truth(f.status.TakenOver) }},
	{"devices_kept", "0 if nobody keeps the devices: if the daemon ends now, containers get errors.", gauge, func(f *figures) float64 { return truth(f.status.Keeper.Error == "") }},
	{"keepers_replaced_total", "Keepers that had ended while the daemon ran, and were replaced.", counter, func(f *figures) float64 { return float64(f.status.Keeper.Again) }},
	{"resent_reads_total", "Reads that a former daemon had not answered, and the kernel sent again.", counter, func(f *figures) float64 { return float64(f.devices.Resent) }},
	{"reads_in_flight", "Reads that are being answered.", gauge, func(f *figures) float64 { return float64(f.devices.Active) }},
	{"reads_in_flight_bytes", "Bytes that reads in flight ask for.", gauge, func(f *figures) float64 { return float64(f.devices.ActiveBytes) }},
	{"reads_waiting", "Reads that wait for their turn.", gauge, func(f *figures) float64 { return float64(f.devices.Queued) }},
	{"kernel_requests", "Requests that the kernel counts as unanswered, with those that processes wait to make; -1 if it does not say.", gauge, func(f *figures) float64 { return float64(f.devices.InKernel) }},
	{"oldest_read_seconds", "For how long the oldest unanswered read has been waited for.", gauge, func(f *figures) float64 { return f.devices.Oldest.Seconds() }},

	{"pulls_without_hub_total", "Look-ups that no hub answered in time, and indexes that did not come: images were unpacked as usual.", counter, func(f *figures) float64 { return float64(f.status.NoHub) }},
	{"unit_requests_total", "Units and chunks asked for.", counter, func(f *figures) float64 { return float64(f.status.Fetched.Requests) }},
	{"unit_received_bytes_total", "Bytes of units received, as they came (compressed).", counter, func(f *figures) float64 { return float64(f.status.Fetched.Bytes) }},
	{"unit_retries_total", "Requests for units that were made again.", counter, func(f *figures) float64 { return float64(f.status.Fetched.Retries) }},
	{"verification_failures_total", "Answers whose bytes were not what was asked for. None of them reached a reader.", counter, func(f *figures) float64 { return float64(f.status.Fetched.Invalid) }},
	{"unit_bytes_in_flight", "Bytes of units that arrive, compressed.", gauge, func(f *figures) float64 { return float64(f.status.Fetched.InFlight.Bytes) }},
	{"unit_bytes_unstored", "Bytes of units that have arrived and are not stored yet, plain.", gauge, func(f *figures) float64 { return float64(f.status.Fetched.Storing) }},
	{"unstored_units_total", "Units that the cache was too slow for; they are fetched again when they are needed again.", counter, func(f *figures) float64 { return float64(f.status.Fetched.Unstored) }},

	{"starts_recorded_total", "Starts of containers of which it was recorded what they read.", counter, func(f *figures) float64 { return float64(f.status.Recording.Recorded) }},
	{"starts_in_recording", "Starts that are being recorded.", gauge, func(f *figures) float64 { return float64(f.status.Recording.InWork) }},
	{"traces_reported_total", "Traces of starts that a hub has taken.", counter, func(f *figures) float64 { return float64(f.status.Recording.Reported) }},
	{"traces_dropped_total", "Traces of starts that no hub has taken, or that there was no room for.", counter, func(f *figures) float64 { return float64(f.status.Recording.Dropped) }},
	{"startup_received_bytes_total", "Bytes of startup packs received, as they came (compressed).", counter, func(f *figures) float64 { return float64(f.status.Ahead.Startup.Fetched) }},
	{"startup_brought_bytes_total", "Bytes of chunks that startup packs were to bring, plain.", counter, func(f *figures) float64 { return float64(f.status.Ahead.Startup.Brought) }},
	{"startup_used_bytes_total", "Bytes of those chunks that were read later.", counter, func(f *figures) float64 { return float64(f.status.Ahead.Startup.Used) }},
	{"startup_loaded_bytes_total", "Bytes of startup packs' chunks that were on the disk and read ahead into memory, plain.", counter, func(f *figures) float64 { return float64(f.status.Ahead.Loaded) }},
	{"around_brought_bytes_total", "Bytes of chunks that were to come with a miss, from around it, plain.", counter, func(f *figures) float64 { return float64(f.status.Ahead.Neighbours.Brought) }},
	{"around_used_bytes_total", "Bytes of those chunks that were read later.", counter, func(f *figures) float64 { return float64(f.status.Ahead.Neighbours.Used) }},
	{"link_bytes_per_second", "The most that came from the hubs of late.", gauge, func(f *figures) float64 { return float64(f.status.Fetched.Link.Rate) }},
	{"link_round_trip_seconds", "The least that a first byte took of late.", gauge, func(f *figures) float64 { return f.status.Fetched.Link.RoundTrip.Seconds() }},

	{"cache_bytes", "Bytes that the cache takes on the disk.", gauge, func(f *figures) float64 { return float64(f.status.Cache.Used) }},
	{"cache_limit_bytes", "The most that the cache may take.", gauge, func(f *figures) float64 { return float64(f.status.Cache.Limit) }},
	{"cache_room_bytes", "What the cache may take now: its limit, or less while its disk is short.", gauge, func(f *figures) float64 { return float64(f.status.Cache.Room) }},
	{"cache_disk_free_bytes", "Bytes that are free of the cache's disk.", gauge, func(f *figures) float64 { return float64(f.status.Cache.Free) }},
	{"cache_loading_bytes", "Bytes of the cache that are not loaded yet, after a start; what is read of them is fetched.", gauge, func(f *figures) float64 { return float64(f.status.Cache.Loading) }},
	{"cache_pinned_bytes", "Bytes of the cache that are pinned, when all of the pinned images is here.", gauge, func(f *figures) float64 { return float64(f.status.Cache.Pinned) }},
	{"cache_off", "1 if there is no cache, or its disk refuses writes, fails reads or does not answer and is left alone.", gauge, func(f *figures) float64 { return truth(f.status.Cache.Off() != "") }},
	{"cache_evicted_bytes_total", "Bytes of the disk that were freed.", counter, func(f *figures) float64 { return float64(f.status.Cache.Evicted) }},
	{"cache_failed_reads_total", "Chunks that the disk did not give; they are fetched again.", counter, func(f *figures) float64 { return float64(f.status.Cache.Unread) }},
	{"cache_unanswered_total", "Reads and writes that the disk did not answer in time; what is read is fetched.", counter, func(f *figures) float64 { return float64(f.status.Cache.Hung) }},
	{"cache_chunks", "Chunks in the cache.", gauge, func(f *figures) float64 { return float64(f.status.Cache.Chunks) }},
	{"cache_hits_total", "Chunks that were looked for in the cache and found.", counter, func(f *figures) float64 { return float64(f.status.Cache.Hits) }},
	{"cache_misses_total", "Chunks that were looked for in the cache and not found.", counter, func(f *figures) float64 { return float64(f.status.Cache.Misses) }},
	{"cache_damaged_chunks_total", "Chunks that the disk gave back wrong; they are fetched again.", counter, func(f *figures) float64 { return float64(f.status.Cache.Damaged) }},
	{"cache_scrubbed_bytes_total", "Bytes that were verified for nobody who waits.", counter, func(f *figures) float64 { return float64(f.status.Cache.Scrubbed) }},
	{"cache_failed_writes_total", "Chunks that the disk did not take.", counter, func(f *figures) float64 { return float64(f.status.Cache.Failed) }},
	{"completion_received_bytes_total", "Bytes of units received to complete images, as they came (compressed).", counter, func(f *figures) float64 { return float64(f.status.Completion.Fetched) }},
	{"completion_left_bytes", "Bytes of chunks that the image whose turn it is to be completed lacks.", gauge, func(f *figures) float64 { return float64(f.status.Completion.Left) }},
	{"completion_waits", "1 while nothing may be fetched to complete images: by the schedule, or because disk, cache or memory are short.", gauge, func(f *figures) float64 { return truth(f.status.Completion.Waits != "") }},
	{"local_device_bytes", "Bytes of the disk that local devices take, as part of the cache's.", gauge, func(f *figures) float64 { return float64(f.status.Cache.Beside) }},
	{"local_mounts", "Mounted trees whose newest mount reads a local device.", gauge, func(f *figures) float64 { return float64(localMounts(&f.status)) }},
	{"leftovers", "Files and directories of the node that could not be cleaned up or written.", gauge, func(f *figures) float64 { return float64(len(f.status.Leftovers)) }},
	{"unsigned_statements", "Statements that one of the pinned keys has not signed, of the key that lacks most.", gauge, func(f *figures) float64 { return float64(unsigned(&f.status)) }},
	{"log_lines_dropped_total", "Lines of the log that were dropped because nobody read it.", counter, func(f *figures) float64 { return float64(f.dropped) }},
	{"broken_trees", "Trees that could not be brought back, or whose metadata image is damaged under its mount.", gauge, func(f *figures) float64 { return float64(len(f.status.Lost)) }},
	{"refused_statements", "Chains in use whose statement on the disk cannot be verified: their trees are served, and no new pull uses them.", gauge, func(f *figures) float64 { return float64(len(f.status.Refused)) }},
}

func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// The values of labels. There are no others: nothing here grows with what is run.
const (
	fromCache = "cache"
	fromHub   = "hub"
	urgent    = "reader"
	ahead     = "ahead"
)

var (
	faultSeconds = describe("fault_duration_seconds", "From the kernel's request to the answer, by where the bytes came from.", "origin")
	readBytes    = describe("read_bytes_total", "Bytes that the kernel read, by where they came from.", "origin")
	failedReads  = describe("failed_reads_total", "Reads that ended with an input/output error, by reason.", "reason")
	mounts       = describe("mounts", "Mounted trees, by how the kernel gets at them.", "mode")
	images       = describe("images", "Images whose snapshots are here, by whether they are lazy.", "lazy")
	inFlight     = describe("units_in_flight", "Requests for units that are on their way, by whom they are for: a reader who waits, or nobody yet.", "for")
	waiting      = describe("units_waiting", "Units that wait for their turn to be asked for.", "for")
	hubUp        = describe("hub_up", "0 while a hub is not asked because it failed.", "hub")
	hubRequests  = describe("hub_requests_total", "Requests to a hub: look-ups, indexes, locations, units.", "hub")
	hubFailures  = describe("hub_failures_total", "Requests that a hub failed: no answer, or not what was asked for.", "hub")
	hubBytes     = describe("hub_received_bytes_total", "Bytes received of a hub, as they came: units, indexes, locations.", "hub")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(metricPrefix+name, help, labels, nil)
}

// collector makes metrics of the figures when they are asked for.
type collector struct {
	figures func() (figures, bool)
}

// Describe implements prometheus.Collector. It says nothing, as it does not know
// which modes there are.
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

// histogram writes a Latency as Prometheus wants it: each bucket holds those
// before it too.
func histogram(l fuse.Latency, origin string) prometheus.Metric {
	buckets := make(map[float64]uint64, fuse.LatencyBuckets)
	var sum uint64
	for i := range fuse.LatencyBuckets {
		sum += uint64(l.Counts[i])
		buckets[fuse.LatencyBound(i).Seconds()] = sum
	}
	return prometheus.MustNewConstHistogram(faultSeconds, uint64(l.Count()), l.Sum.Seconds(), buckets, origin)
}

// newRegistry returns what a scrape asks: the node's own metrics, and those of the
// process and of Go.
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
	return figures{status: status, devices: n.Devices(), ready: s.reason.Load() == nil, dropped: logqueue.Dropped(s.log)}, true
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
