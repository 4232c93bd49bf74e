package hub

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lighter/buildinfo"
	"lighter/hub/away"
	"lighter/hub/fsck"
	"lighter/hub/hooks"
	"lighter/hub/outage"
	"lighter/hub/pullthrough"
	"lighter/hub/pushthrough"
	"lighter/hub/report"
	"lighter/hub/space"
	"lighter/logqueue"
	"lighter/wire"
)

// view answers /metrics, /healthz and /readyz. docs/metrics.md describes the metrics.
type view struct {
	hooks    *hooks.Server
	domains  []*domain
	reserve  *space.Reserve
	others   prometheus.Collector // the other registries
	through  *pullthrough.Service
	pushes   *pushthrough.Service
	outages  *outage.Watch
	stopping atomic.Bool
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	log      *slog.Logger
}

const metricPrefix = "lighter_hub_"

// Names of the hub's stores.
const (
	databaseStore = "database"
	bucketStore   = "bucket"
)

// requestBuckets are in seconds: from a small read of a disk to a transfer over a slow network.
var requestBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

func newView(
	domains []*domain, with *shared, hooks *hooks.Server, outages *outage.Watch, log *slog.Logger,
) *view {
	return &view{domains: domains, hooks: hooks, reserve: with.reserve, others: with.registries,
		through: with.through, pushes: with.pushes,
		outages: outages, log: log,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + "requests_total",
			Help: "Requests answered, by endpoint and status."}, []string{"endpoint", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricPrefix + "request_duration_seconds",
			Help: "Time from a request's header to the end of its answer, by endpoint.", Buckets: requestBuckets},
			[]string{"endpoint"})}
}

// endpoints are the values of the label "endpoint": the first path elements below a domain,
// "registry", and "other" for all other paths.
var endpoints = []string{"chains", "manifests", "soon", "trees", "indexes", "locations", "packs", "chunks", "key",
	"images", "fsck", "jobs", "gc", "traces", "held", "holders", "retention",
	"wishlists", "events", "status", "hooks", "registry", "other"}

func endpointOf(path string) string {
	if strings.HasPrefix(path, "/v2/") {
		return "registry"
	}
	if strings.HasPrefix(path, wire.HooksPrefix) {
		return "hooks"
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

// register adds the view's paths.
func (v *view) register(mux *http.ServeMux) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(v, v.requests, v.seconds, v.others, buildinfo.Collector(), collectors.NewGoCollector(),
		collectors.NewBuildInfoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, d := range v.domains {
		prometheus.WrapRegistererWith(prometheus.Labels{"domain": d.name}, registry).MustRegister(figures{d})
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(v.log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: 4, Timeout: scrapeTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { sendText(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		status, text := v.readiness()
		sendText(w, status, text)
	})
}

// readiness returns the answer of /readyz: a line that says whether the hub is ready, and one for
// each check. The hub is ready as soon as it answers, until it shuts down, and while the bucket is
// there. Without the database it still serves units to containers. When all processes of a hub lose
// the database at the same time, and would not be ready, a balancer would pass on nothing at all.
func (v *view) readiness() (status int, text string) {
	status, first := http.StatusOK, "ok"
	if v.stopping.Load() {
		status, first = http.StatusServiceUnavailable, "shutting down"
	}
	var lines strings.Builder
	for _, s := range v.outages.States() {
		switch {
		case s.Err == nil:
			fmt.Fprintf(&lines, "\n%s: ok", s.Store)
			continue
		case s.Store == bucketStore && status == http.StatusOK:
			status, first = http.StatusServiceUnavailable, "not ready"
		}
		fmt.Fprintf(&lines, "\n%s: away for %v: %s", s.Store, time.Since(s.Since).Round(time.Second),
			cmp.Or(away.Text(s.Err), report.Reason(s.Err)))
	}
	disk := "ok"
	if err := v.reserve.Check(); err != nil { // the hub still serves what it has
		disk = "nothing is ingested: " + err.Error()
	}
	return status, first + lines.String() + "\ndisk: " + disk
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
	to := sink(out)
	to.counter("log_lines_dropped_total", "Log lines dropped because the log was not read.",
		int64(logqueue.Dropped(v.log)), nil)
	for _, s := range v.outages.States() {
		up := int64(1)
		if s.Err != nil {
			up = 0
		}
		to.gauge("store_up", "0 while the hub cannot use a store: its database or its bucket.", up,
			prometheus.Labels{"store": s.Store})
	}
	v.hooks.Count(func(hook, result string, n int64) {
		to.counter("hook_requests_total", "Requests with events of a hook, by result.", n,
			prometheus.Labels{"hook": hook, "result": result})
	})
	for result, n := range v.through.Requests() {
		to.counter("pull_through_requests_total", "Requests for objects of other registries, by result.", n,
			byResult(result))
	}
	for result, n := range v.through.Images() {
		to.counter("pull_through_images_total", "Images that were pulled through the hub, by result.", n,
			byResult(result))
	}
	for result, n := range v.pushes.Requests() {
		to.counter("push_through_requests_total", "Requests of pushes to other registries, by result.", n,
			byResult(result))
	}
	for result, n := range v.pushes.Images() {
		to.counter("push_through_images_total", "Tags that were pushed to other registries through the hub, by result.",
			n, byResult(result))
	}
	to.gauge("disk_reserve_bytes", "Free bytes that the hub leaves on its disks.", v.reserve.Bytes(), nil)
	for _, d := range v.reserve.Dirs() {
		free, err := d.Free()
		if err != nil {
			v.log.Warn("cannot collect metrics", "err", err)
			return
		}
		to.gauge("disk_free_bytes", "Free bytes of the disk of a directory.", free, prometheus.Labels{"dir": d.Name})
	}
}

// sink receives metrics.
type sink chan<- prometheus.Metric

func (s sink) gauge(name, help string, n int64, labels prometheus.Labels) {
	s.send(prometheus.GaugeValue, name, help, n, labels)
}

func (s sink) counter(name, help string, n int64, labels prometheus.Labels) {
	s.send(prometheus.CounterValue, name, help, n, labels)
}

func (s sink) send(kind prometheus.ValueType, name, help string, n int64, labels prometheus.Labels) {
	desc := prometheus.NewDesc(metricPrefix+name, help, nil, labels)
	s <- prometheus.MustNewConstMetric(desc, kind, float64(n))
}

// figures are the metrics of a domain.
type figures struct{ *domain }

// Describe implements prometheus.Collector.
func (f figures) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, out) }

// Collect implements prometheus.Collector.
func (f figures) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	for _, collect := range []func(context.Context, sink) error{
		f.collectImages, f.collectJobs, f.collectChecks, f.collectStarts, f.collectHolders, f.collectRetention,
		f.collectQuotas, f.collectGarbage, f.collectEvents, f.collectExport, f.collectHints,
	} {
		if err := collect(ctx, out); err != nil {
			f.log.Warn("cannot collect metrics", "err", err)
			return
		}
	}
}

func (f figures) collectImages(ctx context.Context, to sink) error {
	states, err := f.catalog.States(ctx)
	if err != nil {
		return err
	}
	for _, state := range []string{wire.StateQueued, wire.StateActive, wire.StateReady, wire.StateFailed,
		wire.StateStored} {
		to.gauge("images", "Images, by state.", states[state], prometheus.Labels{"state": state})
	}
	return nil
}

func (f figures) collectJobs(ctx context.Context, to sink) error {
	open, err := f.catalog.Jobs.Count(ctx)
	if err != nil {
		return err
	}
	for _, kind := range f.jobs.Kinds() {
		for _, state := range []string{wire.JobQueued, wire.JobRunning, wire.JobPaused} {
			to.gauge("jobs", "Jobs that have not ended, by kind and state.", open[[2]string{kind, state}],
				prometheus.Labels{"kind": kind, "state": state})
		}
	}
	return nil
}

func (f figures) collectChecks(ctx context.Context, to sink) error {
	for _, kind := range []string{fsck.KindCheck, fsck.KindSweep, fsck.KindScrub} {
		state, err := f.catalog.Checks.Get(ctx, kind)
		if err != nil {
			return err
		}
		labels, completed := prometheus.Labels{"check": kind}, int64(0)
		if !state.Ended.IsZero() {
			completed = state.Ended.Unix()
		}
		to.gauge("check_completed_seconds", "When the last complete check ended, in seconds since 1970.", completed,
			labels)
		to.counter("check_objects_total", "Objects that checks have compared or read.", state.Objects, labels)
		to.counter("check_read_bytes_total", "Bytes of objects that checks have read.", state.Bytes, labels)
		to.counter("check_errors_total", "Problems that checks have found.", state.Errors, labels)
	}
	return nil
}

// byResult is the label of a counter of results.
func byResult(result string) prometheus.Labels { return prometheus.Labels{"result": result} }

// collectStarts collects the metrics of traces, layouts and startup packs.
func (f figures) collectStarts(ctx context.Context, to sink) error {
	counts := f.starts.Counts()
	const traces, layouts = "Traces that nodes have reported, by result.", "Layouts of trees, by result."
	to.counter("traces_total", traces, counts.Taken, byResult("taken"))
	to.counter("traces_total", traces, counts.Refused, byResult("refused"))
	to.counter("layouts_total", layouts, counts.Laid, byResult("made"))
	to.counter("layouts_total", layouts, counts.GivenUp, byResult("failed"))
	held, err := f.catalog.Starts.StartHoldings(ctx)
	if err != nil {
		return err
	}
	limit, err := f.starts.Limit(ctx)
	if err != nil {
		return err
	}
	to.gauge("trace_bytes", "Bytes of traces and recordings, compressed.", held.TraceBytes, nil)
	to.gauge("startup_packs", "Startup packs, including retired ones.", held.Packs, nil)
	to.gauge("startup_pack_bytes", "Bytes of startup packs, including retired ones.", held.PackBytes, nil)
	to.gauge("startup_pack_live_bytes", "Bytes of startup packs that are not retired.", held.Live, nil)
	to.gauge("startup_pack_limit_bytes", "Limit of the bytes of startup packs that are not retired.", limit, nil)
	to.gauge("startup_packs_lost", "Trees whose startup packs were evicted because others were used more recently.",
		held.Lost, nil)
	to.gauge("layouts_waiting", "Trees that wait for a new layout.", held.Waiting, nil)
	return nil
}

func (f figures) collectHolders(ctx context.Context, to sink) error {
	counts, err := f.holders.Counts(ctx)
	if err != nil {
		return err
	}
	for state, n := range counts.Holders {
		to.gauge("holders", "Nodes and mirrors that have reported what they have, by state.", n,
			prometheus.Labels{"state": state})
	}
	const reports = "Reports of what nodes and mirrors have, by result."
	to.counter("held_reports_total", reports, counts.Accepted, byResult("accepted"))
	to.counter("held_reports_total", reports, counts.Beyond, byResult("beyond"))
	to.counter("held_reports_total", reports, counts.Refused, byResult("refused"))
	return nil
}

func (f figures) collectRetention(ctx context.Context, to sink) error {
	counts, err := f.expiry.Counts(ctx)
	if err != nil {
		return err
	}
	to.counter("retention_removed_total", "Images that retention rules have removed.", counts.Removed, nil)
	to.gauge("retention_waiting", "Images that retention rules would remove after a confirmation.", counts.Waiting, nil)
	return nil
}

func (f figures) collectQuotas(ctx context.Context, to sink) error {
	use, err := f.quotas.Use(ctx)
	if err != nil {
		return err
	}
	for _, q := range f.config.Quota {
		labels := prometheus.Labels{"prefix": q.Prefix}
		to.gauge("quota_bytes", "Quota of the images below a prefix.", int64(q.Bytes), labels)
		to.gauge("quota_used_bytes", "Bytes of the images below a prefix.", use[q.Prefix], labels)
	}
	return nil
}

func (f figures) collectEvents(ctx context.Context, to sink) error {
	counts, err := f.events.Counts(ctx)
	if err != nil {
		return err
	}
	const attempts = "Attempts to deliver an event, by target and result."
	for target, n := range counts {
		labels := prometheus.Labels{"target": target}
		for result, n := range map[string]int64{"delivered": n.Delivered, "failed": n.Failed} {
			to.counter("event_attempts_total", attempts, n, prometheus.Labels{"target": target, "result": result})
		}
		to.gauge("events_waiting", "Events that a target is to get.", n.Waiting, labels)
		to.gauge("events_dead", "Events that a target did not get.", n.Dead, labels)
	}
	return nil
}

func (f figures) collectHints(ctx context.Context, to sink) error {
	counts, err := f.hooks.Count(ctx)
	if err != nil {
		return err
	}
	for _, h := range f.config.Hooks {
		to.gauge("hook_hints", "Hints of a hook that are not looked at yet.", counts[h.Name],
			prometheus.Labels{"hook": h.Name})
	}
	return nil
}

// collectGarbage collects the metrics of the last collection of what no image needs.
func (f figures) collectGarbage(ctx context.Context, to sink) error {
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
	to.counter("collected_bytes_total", "Bytes of the objects that collections have deleted.", last.AllBytes, nil)
	to.gauge("collection_dead_bytes", "Bytes that nothing needs in packs that stay, at the last collection.",
		last.DeadBytes, nil)
	to.gauge("collection_unrenewed_trees", "Trees whose locations the last collection could not renew.", last.Unrenewed,
		nil)
	to.gauge("collection_timestamp_seconds", "When the last collection ended, in seconds since 1970.", ended, nil)
	return nil
}

// collectExport collects the metrics of the domain's mirror.
func (f figures) collectExport(ctx context.Context, to sink) error {
	if f.exporter == nil {
		return nil
	}
	counts, err := f.exporter.Counts(ctx)
	if err != nil {
		return err
	}
	completed := int64(0)
	if !counts.Completed.IsZero() {
		completed = counts.Completed.Unix()
	}
	to.gauge("export_completed_seconds", "When the mirror was last up to date, in seconds since 1970.", completed, nil)
	to.gauge("export_files", "Files of the mirror; all units of a pack count as one.", counts.Files, nil)
	to.counter("export_written_bytes_total", "Bytes that were written to the mirror.", counts.Bytes, nil)
	to.counter("export_errors_total", "Trees and images that could not be copied to the mirror.", counts.Errors, nil)
	return nil
}
