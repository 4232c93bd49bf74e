package hub

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lighter/hub/fsck"
	"lighter/hub/space"
	"lighter/logqueue"
	"lighter/wire"
)

// view answers /metrics, /healthz and /readyz. docs/metrics.md describes the metrics.
type view struct {
	domains  []*domain
	reserve  *space.Reserve
	stopping atomic.Bool
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	log      *slog.Logger
}

const metricPrefix = "lighter_hub_"

// requestBuckets are in seconds: from a small read of a disk to a transfer over a slow network.
var requestBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

func newView(domains []*domain, reserve *space.Reserve, log *slog.Logger) *view {
	return &view{domains: domains, reserve: reserve, log: log,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + "requests_total",
			Help: "Requests answered, by endpoint and status."}, []string{"endpoint", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricPrefix + "request_duration_seconds",
			Help: "Time from a request's header to the end of its answer, by endpoint.", Buckets: requestBuckets},
			[]string{"endpoint"})}
}

// endpoints are the values of the label "endpoint": the first path elements below a domain, the
// registry, and all others.
var endpoints = []string{"chains", "manifests", "trees", "indexes", "locations", "packs", "chunks", "key", "images",
	"fsck", "jobs", "gc", "traces", "held", "holders", "retention", "registry", "other"}

func endpointOf(path string) string {
	if strings.HasPrefix(path, "/v2/") {
		return "registry"
	}
	if rest, ok := strings.CutPrefix(path, wire.Prefix+"/"); ok {
		_, rest, _ = strings.Cut(rest, "/")
		if word, _, _ := strings.Cut(rest, "/"); slices.Contains(endpoints, word) {
			return word
		}
	}
	return "other"
}

// counted counts and times the requests that next answers.
func (v *view) counted(next http.Handler) http.Handler {
	handlers := map[string]http.Handler{}
	for _, endpoint := range endpoints {
		label := prometheus.Labels{"endpoint": endpoint}
		handlers[endpoint] = promhttp.InstrumentHandlerDuration(v.seconds.MustCurryWith(label),
			promhttp.InstrumentHandlerCounter(v.requests.MustCurryWith(label), next))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		handlers[endpointOf(req.URL.Path)].ServeHTTP(w, req)
	})
}

// scrapeTimeout bounds the time for one scrape.
const scrapeTimeout = 10 * time.Second

// register adds the view's paths. The hub is ready as soon as it answers, until it shuts down.
func (v *view) register(mux *http.ServeMux) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(v, v.requests, v.seconds, collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, d := range v.domains {
		prometheus.WrapRegistererWith(prometheus.Labels{"domain": d.name}, registry).MustRegister(figures{d})
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(v.log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: 4, Timeout: scrapeTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { sendText(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if v.stopping.Load() {
			sendText(w, http.StatusServiceUnavailable, "shutting down")
			return
		}
		text := "ok"
		if err := v.reserve.Check(); err != nil { // it serves what it has
			text += "\nnothing is ingested: " + err.Error()
		}
		sendText(w, http.StatusOK, text)
	})
}

func sendText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n")) // an error means that the client has gone
}

// Describe implements prometheus.Collector.
func (v *view) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(v, out) }

// Collect implements prometheus.Collector, with the metrics of the process.
func (v *view) Collect(out chan<- prometheus.Metric) {
	send := sender(out)
	send(prometheus.CounterValue, "log_lines_dropped_total", "Log lines dropped because the log was not read.",
		int64(logqueue.Dropped(v.log)), nil)
	send(prometheus.GaugeValue, "disk_reserve_bytes", "Free bytes that the hub leaves on its disks.", v.reserve.Bytes(),
		nil)
	for _, d := range v.reserve.Dirs() {
		free, err := d.Free()
		if err != nil {
			v.log.Warn("collect metrics failed", "err", err)
			return
		}
		send(prometheus.GaugeValue, "disk_free_bytes", "Free bytes of the disk of a directory.", free,
			prometheus.Labels{"dir": d.Name})
	}
}

// sender returns a function that sends metrics.
func sender(out chan<- prometheus.Metric) func(prometheus.ValueType, string, string, int64, prometheus.Labels) {
	return func(kind prometheus.ValueType, name, help string, n int64, labels prometheus.Labels) {
		desc := prometheus.NewDesc(metricPrefix+name, help, nil, labels)
		out <- prometheus.MustNewConstMetric(desc, kind, float64(n))
	}
}

// figures are the metrics of a domain.
type figures struct{ *domain }

// Describe implements prometheus.Collector.
func (f figures) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, out) }

// Collect implements prometheus.Collector.
func (f figures) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	if err := f.collect(ctx, out); err != nil {
		f.log.Warn("collect metrics failed", "err", err)
	}
}

func (f figures) collect(ctx context.Context, out chan<- prometheus.Metric) error {
	send := sender(out)
	count := func(name, help, result string, n int64) {
		send(prometheus.CounterValue, name, help, n, prometheus.Labels{"result": result})
	}
	gauge := func(name, help string, n int64) { send(prometheus.GaugeValue, name, help, n, nil) }

	states, err := f.catalog.States(ctx)
	if err != nil {
		return err
	}
	for _, state := range []string{wire.StateQueued, wire.StateActive, wire.StateReady, wire.StateFailed,
		wire.StateStored} {
		send(prometheus.GaugeValue, "images", "Images, by state.", states[state], prometheus.Labels{"state": state})
	}
	open, err := f.catalog.Jobs.Count(ctx)
	if err != nil {
		return err
	}
	for _, kind := range f.jobs.Kinds() {
		for _, state := range []string{wire.JobQueued, wire.JobRunning, wire.JobPaused} {
			send(prometheus.GaugeValue, "jobs", "Jobs that have not ended, by kind and state.",
				open[[2]string{kind, state}], prometheus.Labels{"kind": kind, "state": state})
		}
	}
	for _, kind := range []string{fsck.KindCheck, fsck.KindSweep, fsck.KindScrub} {
		state, err := f.catalog.Checks.Get(ctx, kind)
		if err != nil {
			return err
		}
		labels, completed := prometheus.Labels{"check": kind}, int64(0)
		if !state.Ended.IsZero() {
			completed = state.Ended.Unix()
		}
		send(prometheus.GaugeValue, "check_completed_seconds", "When the last complete check ended, since 1970.",
			completed, labels)
		send(prometheus.CounterValue, "check_objects_total", "Objects that checks have compared or read.",
			state.Objects, labels)
		send(prometheus.CounterValue, "check_read_bytes_total", "Bytes of objects that checks have read.",
			state.Bytes, labels)
		send(prometheus.CounterValue, "check_errors_total", "Problems that checks have found.",
			state.Errors, labels)
	}
	counts := f.starts.Counts()
	const traces, layouts = "Traces that nodes have reported, by result.", "Layouts of trees, made or given up."
	count("traces_total", traces, "taken", counts.Taken)
	count("traces_total", traces, "refused", counts.Refused)
	count("layouts_total", layouts, "made", counts.Laid)
	count("layouts_total", layouts, "failed", counts.GivenUp)
	held, err := f.catalog.Starts.StartHoldings(ctx)
	limit, limitErr := f.starts.Limit(ctx)
	if err = errors.Join(err, limitErr); err != nil {
		return err
	}
	gauge("trace_bytes", "Bytes of traces and recordings, compressed.", held.TraceBytes)
	gauge("startup_packs", "Startup packs, including retired ones.", held.Packs)
	gauge("startup_pack_bytes", "Bytes of startup packs, including retired ones.", held.PackBytes)
	gauge("startup_pack_live_bytes", "Bytes of startup packs that are not retired.", held.Live)
	gauge("startup_pack_limit_bytes", "Limit of the bytes of startup packs that are not retired.", limit)
	gauge("startup_packs_lost", "Trees whose startup packs were evicted because others were used more recently.",
		held.Lost)
	gauge("layouts_waiting", "Trees that wait for a new layout.", held.Waiting)
	holders, err := f.holders.Counts(ctx)
	if err != nil {
		return err
	}
	for state, n := range holders.Holders {
		send(prometheus.GaugeValue, "holders", "Nodes and mirrors that have reported what they have, by state.", n,
			prometheus.Labels{"state": state})
	}
	const reports = "Reports of what nodes and mirrors have, by result."
	count("held_reports_total", reports, "accepted", holders.Accepted)
	count("held_reports_total", reports, "refused", holders.Refused)
	expiry, err := f.expiry.Counts(ctx)
	if err != nil {
		return err
	}
	send(prometheus.CounterValue, "retention_removed_total", "Images that retention rules have removed.",
		expiry.Removed, nil)
	use, err := f.quotas.Use(ctx)
	if err != nil {
		return err
	}
	for _, q := range f.config.Quota {
		labels := prometheus.Labels{"prefix": q.Prefix}
		send(prometheus.GaugeValue, "quota_bytes", "Quota of the images below a prefix.", int64(q.Bytes), labels)
		send(prometheus.GaugeValue, "quota_used_bytes", "Bytes of the images below a prefix.", use[q.Prefix], labels)
	}
	gauge("retention_waiting", "Images that retention rules would remove after a confirmation.", expiry.Waiting)
	last, err := f.collector.Last(ctx)
	if err != nil {
		return err
	}
	ended := int64(0)
	if last == nil {
		last = &wire.Collection{}
	} else {
		ended = last.At.Unix()
	}
	send(prometheus.CounterValue, "collected_bytes_total", "Bytes of the objects that collections have deleted.",
		last.AllBytes, nil)
	gauge("collection_dead_bytes", "Bytes that nothing needs in packs that stay, at the last collection.",
		last.DeadBytes)
	gauge("collection_unrenewed_trees", "Trees whose locations the last collection could not renew.", last.Unrenewed)
	gauge("collection_timestamp_seconds", "When the last collection ended, in seconds since 1970.", ended)
	return nil
}
