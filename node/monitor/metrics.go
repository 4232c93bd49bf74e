package monitor

import (
	"context"
	"log/slog"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lighter/buildinfo"
	"lighter/logqueue"
	"lighter/node/directory"
	"lighter/node/front/containerd/blobs"
	"lighter/node/fuse"
	"lighter/node/mount"
	"lighter/node/report"
)

// metricPrefix is the prefix of the node's own metrics. docs/metrics.md describes them all.
const metricPrefix = "lighter_node_"

// figures are the values of one scrape.
type figures struct {
	status   report.Status
	noImages bool // the images could not be listed
	devices  fuse.ServerStats
	ready    bool
	dropped  int64 // number of dropped log lines
}

// metric is the value of a metric without labels.
type metric struct {
	name  string
	kind  prometheus.ValueType
	value float64
	help  string
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// metrics returns the metrics without labels.
func (f *figures) metrics() []metric {
	return slices.Concat(f.daemon(), f.reads(), f.fetches(), f.starts(), f.cache(), f.completion(), f.trees(),
		f.directory(), f.blobs())
}

// daemon describes the process and its keeper, and what the process failed to clean up or report.
func (f *figures) daemon() []metric {
	s := &f.status
	return []metric{
		{"ready", gauge, truth(f.ready),
			"1 if the node is ready. Failed health checks change the answer of /readyz, but not this metric."},
		{"taken_over", gauge, truth(s.TakenOver), "1 if this daemon took over a previous daemon's devices."},
		{"devices_kept", gauge, truth(s.Keeper.Error == ""),
			"0 if no keeper holds the devices: if the daemon ends now, containers get errors."},
		{"keepers_replaced_total", counter, float64(s.Keeper.Replaced),
			"Keepers that ended while the daemon ran, and were replaced."},
		{"log_lines_dropped_total", counter, float64(f.dropped),
			"Log lines that were dropped because nothing read the log."},
		{"leftovers", gauge, float64(len(s.Leftovers)),
			"Files and directories of the node that could not be cleaned up or written."},
		{"held_unreported", gauge, float64(unreported(s)),
			"Hubs that failed to accept the last report of this node's trees."},
	}
}

// reads describes what the kernel requests.
func (f *figures) reads() []metric {
	reads := &f.devices
	return []metric{
		{"resent_reads_total", counter, float64(reads.Resent),
			"Reads that a previous daemon had not answered, and the kernel sent again."},
		{"reads_in_flight", gauge, float64(reads.Active), "Reads that are being answered."},
		{"reads_in_flight_bytes", gauge, float64(reads.ActiveBytes), "Bytes that reads in flight ask for."},
		{"reads_waiting", gauge, float64(reads.Queued), "Reads that wait for admission."},
		{"kernel_requests", gauge, float64(reads.InKernel),
			"Requests that the kernel counts as unanswered, including blocked ones; -1 if unknown."},
		{"oldest_read_seconds", gauge, reads.Oldest.Seconds(), "Age of the oldest unanswered read."},
	}
}

// fetches describes what the node requests from hubs.
func (f *figures) fetches() []metric {
	fetched := &f.status.Fetched
	return []metric{
		{"pulls_without_hub_total", counter, float64(f.status.NoHub),
			"Failed lookups and index fetches: their images were unpacked as usual."},
		{"unit_requests_total", counter, float64(fetched.Requests), "Requests for units and chunks."},
		{"unit_received_bytes_total", counter, float64(fetched.Bytes), "Bytes of units received, compressed."},
		{"unit_retries_total", counter, float64(fetched.Retries), "Requests for units that were repeated."},
		{"verification_failures_total", counter, float64(fetched.Invalid),
			"Answers with wrong bytes. None of them reached a reader."},
		{"unit_bytes_in_flight", gauge, float64(fetched.InFlight.Bytes), "Bytes of units in flight, compressed."},
		{"unit_bytes_unstored", gauge, float64(fetched.Storing),
			"Bytes of units that have arrived and are not stored yet, uncompressed."},
		{"unstored_units_total", counter, float64(fetched.Unstored),
			"Units that the cache was too slow to store; they are fetched again when needed."},
		{"link_bytes_per_second", gauge, float64(fetched.Link.Rate),
			"Estimated bandwidth of the hubs: the highest recent rate."},
		{"link_round_trip_seconds", gauge, fetched.Link.RoundTrip.Seconds(),
			"Estimated round-trip time: the lowest recent time to the first byte."},
	}
}

// starts describes recorded starts, and what was fetched or loaded before it was read.
func (f *figures) starts() []metric {
	recording, ahead := &f.status.Recording, &f.status.Ahead
	return []metric{
		{"starts_recorded_total", counter, float64(recording.Recorded),
			"Starts of containers whose reads were recorded."},
		{"starts_in_recording", gauge, float64(recording.Active), "Starts that are being recorded."},
		{"traces_reported_total", counter, float64(recording.Reported), "Traces of starts that a hub accepted."},
		{"traces_dropped_total", counter, float64(recording.Dropped),
			"Traces of starts that no hub accepted, or that did not fit into the queue."},
		{"startup_received_bytes_total", counter, float64(ahead.Startup.Fetched),
			"Bytes of startup packs received, compressed."},
		{"startup_brought_bytes_total", counter, float64(ahead.Startup.Added),
			"Bytes of chunks that were requested with startup packs, uncompressed, also if the request failed."},
		{"startup_used_bytes_total", counter, float64(ahead.Startup.Used),
			"Bytes of chunks that were requested with startup packs and read later, uncompressed."},
		{"startup_loaded_bytes_total", counter, float64(ahead.Loaded),
			"Bytes of startup packs' cached chunks that were read ahead into memory."},
		{"around_brought_bytes_total", counter, float64(ahead.Neighbours.Added),
			"Bytes of neighbouring chunks that were requested with a miss, uncompressed, also if the request failed."},
		{"around_used_bytes_total", counter, float64(ahead.Neighbours.Used),
			"Bytes of neighbouring chunks that were requested with a miss and read later, uncompressed."},
		{"guessed_brought_bytes_total", counter, float64(ahead.Guesses.Added),
			"Bytes of chunks that a start probably reads, requested without startup packs, uncompressed, also if the " +
				"request failed."},
		{"guessed_used_bytes_total", counter, float64(ahead.Guesses.Used),
			"Bytes of chunks that were requested by a guess and read later, uncompressed."},
	}
}

func (f *figures) cache() []metric {
	cache := &f.status.Cache
	return []metric{
		{"cache_bytes", gauge, float64(cache.Used), "Bytes that the cache takes on the disk."},
		{"cache_limit_bytes", gauge, float64(cache.Limit), "Maximum of cache_bytes."},
		{"cache_room_bytes", gauge, float64(cache.Room),
			"Bytes that the cache may take now: its limit, or less while its disk is short."},
		{"cache_disk_free_bytes", gauge, float64(cache.Free), "Free bytes of the cache's disk."},
		{"cache_loading_bytes", gauge, float64(cache.Loading),
			"Bytes of the cache that are not loaded yet after a start; chunks in them are fetched again."},
		{"cache_pinned_bytes", gauge, float64(cache.Pinned),
			"Bytes that pinned images take in the cache when all of them are complete."},
		{"cache_off", gauge, truth(cache.Off() != ""),
			"1 if there is no cache, or its disk refuses writes, fails reads or does not answer."},
		{"cache_evicted_bytes_total", counter, float64(cache.Evicted), "Bytes of the disk that evictions freed."},
		{"cache_failed_reads_total", counter, float64(cache.Unread),
			"Chunks that the disk failed to read; they are fetched again."},
		{"cache_unanswered_total", counter, float64(cache.Hung),
			"Reads and writes that the disk did not answer in time; chunks are fetched then."},
		{"cache_chunks", gauge, float64(cache.Chunks), "Chunks in the cache."},
		{"cache_hits_total", counter, float64(cache.Hits), "Lookups of chunks in the cache that found them."},
		{"cache_misses_total", counter, float64(cache.Misses),
			"Lookups of chunks in the cache that did not find them."},
		{"cache_damaged_chunks_total", counter, float64(cache.Damaged),
			"Chunks that the disk returned damaged; they are fetched again."},
		{"cache_scrubbed_bytes_total", counter, float64(cache.Scrubbed), "Bytes that scrubs verified."},
		{"cache_failed_writes_total", counter, float64(cache.Failed), "Chunks that the disk failed to write."},
		{"local_device_bytes", gauge, float64(cache.External),
			"Bytes of the disk that local devices take; they are part of the cache's bytes."},
	}
}

func (f *figures) completion() []metric {
	completion := &f.status.Completion
	return []metric{
		{"completion_received_bytes_total", counter, float64(completion.Fetched),
			"Bytes of units received to complete images, compressed."},
		{"completion_left_bytes", gauge, float64(completion.Left),
			"Bytes of missing chunks of the image that is being completed."},
		{"completion_waits", gauge, truth(completion.Waits != ""),
			"1 while completion waits: for its schedule, or because disk, cache or memory are short."},
	}
}

// trees describes the trees and statements that the node has.
func (f *figures) trees() []metric {
	s := &f.status
	return []metric{
		{"local_mounts", gauge, float64(localMounts(s)), "Mounted trees whose newest mount reads a local device."},
		{"unsigned_statements", gauge, float64(unsigned(s)),
			"Statements that a pinned key has not signed; of several pinned keys, the largest number."},
		{"broken_trees", gauge, float64(len(s.Lost)),
			"Trees that could not be recovered, that no hub has, that are refused, or whose file is damaged while " +
				"it is mounted."},
		{"direct_trees", gauge, float64(s.Direct.Trees), "Trees that this node has made without a hub."},
		{"direct_unverified_trees", gauge, float64(s.Direct.Unverified),
			"Trees that this node has made without a hub, and whose layers it has not read as a whole yet."},
		{"direct_wrong_trees", gauge, float64(s.Direct.Wrong),
			"Trees that are never mounted again, because a layer differs from its table of contents."},
		{"refused_statements", gauge, float64(len(s.Refused)),
			"Chains in use whose statement on the disk cannot be verified; no new pull uses them."},
	}
}

// blobs describes the layers of lazy images in containerd. If they are not configured, all values
// are 0.
func (f *figures) blobs() []metric {
	var s blobs.Status
	if f.status.Blobs != nil {
		s = *f.status.Blobs
	}
	return []metric{
		{"blobs_linked", gauge, float64(s.Links), "Layers that containerd has as links, because nobody has read them."},
		{"blobs_unknown", gauge, float64(s.Unknown), "Layers that containerd lacks, and no hub has."},
		{"blobs_fetched_total", counter, float64(s.Fetched), "Layers that were fetched for readers in containerd."},
		{"blobs_fetched_bytes_total", counter, float64(s.Bytes), "Bytes of these layers."},
		{"blobs_failures_total", counter, float64(s.Failures), "Layers that could not be fetched."},
	}
}

// directory describes the directory of images. Without one, all values are 0.
func (f *figures) directory() []metric {
	var s directory.Status
	if f.status.Directory != nil {
		s = *f.status.Directory
	}
	mounted := 0
	for _, i := range s.Images {
		if i.Mounted {
			mounted++
		}
	}
	return []metric{
		{"directory_shown", gauge, truth(s.Dir != "" && s.Hidden == ""), "1 if the directory of images is shown."},
		{"directory_names", gauge, float64(s.Names), "Images that the directory of images lists."},
		{"directory_mounted", gauge, float64(mounted), "Images that are mounted in the directory of images."},
		{"directory_mounts_total", counter, float64(s.Mounts), "Mounts of images in the directory of images."},
		{"directory_failures_total", counter, float64(s.Failures),
			"Images in the directory of images that somebody looked into, and that could not be mounted."},
	}
}

// unreported counts the hubs that failed to accept the last report of this node's trees.
func unreported(s *report.Status) (n int) {
	for _, r := range s.Held {
		if r.Error != "" && !r.Refused {
			n++
		}
	}
	return n
}

func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Values of labels. The number of values does not grow with the number of containers.
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

// Describe implements prometheus.Collector. It describes nothing: then the registry does not check
// each scrape against descriptions.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	f, ok := c.figures()
	if !ok {
		return
	}
	for _, m := range f.metrics() {
		out <- prometheus.MustNewConstMetric(describe(m.name, m.help), m.kind, m.value)
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
	if !f.noImages {
		lazy := map[bool]int{}
		for _, image := range f.status.Images {
			lazy[image.Lazy]++
		}
		put(images, gauge, float64(lazy[true]), "true")
		put(images, gauge, float64(lazy[false]), "false")
	}
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

// histogram converts a Latency. A Prometheus bucket includes the counts of all smaller buckets.
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
	registry.MustRegister(collector{figures}, buildinfo.Collector(), collectors.NewGoCollector(),
		collectors.NewBuildInfoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

func (s *Server) metricsHandler() http.Handler {
	return promhttp.HandlerFor(newRegistry(s.figures), promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout,
	})
}

// figures gathers the figures of a scrape. It returns false until the node's parts exist.
func (s *Server) figures() (figures, bool) {
	n := s.node.Load()
	if n == nil {
		return figures{}, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	status, err := n.Status(ctx)
	if err != nil {
		s.log.Warn("cannot list the images: their metrics are missing", "err", err)
	}
	ready := s.reason.Load() == nil
	return figures{status: status, noImages: err != nil, devices: n.Devices(), ready: ready,
		dropped: logqueue.Dropped(s.log)}, true
}

// mountModes counts the mounted trees by mount mode.
func mountModes(s *report.Status) map[string]int {
	modes := map[string]int{string(mount.File): 0, string(mount.Loop): 0}
	for _, m := range s.Mounts {
		modes[string(m.Mode)]++
	}
	return modes
}

// unsigned returns the number of statements that a pinned key has not signed, for the key that has
// signed the fewest.
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
