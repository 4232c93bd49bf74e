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

	"lighter/hub/catalog"
	"lighter/hub/startup"
	"lighter/logqueue"

	"lighter/wire"
)

// view tells machines how the hub is: /metrics, /healthz and /readyz, on the
// address that it has for all else. docs/metrics.md has the metrics.
type view struct {
	catalog  *catalog.Catalog
	starts   *startup.Service
	stopping atomic.Bool
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	log      *slog.Logger
}

const metricPrefix = "lighter_hub_"

// requestBuckets are for what is read from a disk and sent over a network, in
// seconds.
var requestBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

func newView(c *catalog.Catalog, log *slog.Logger) *view {
	return &view{catalog: c, log: log,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + "requests_total",
			Help: "Requests that were answered, by what was asked for and the status."}, []string{"endpoint", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricPrefix + "request_duration_seconds",
			Help: "From a request's header to the end of its answer, by what was asked for.", Buckets: requestBuckets}, []string{"endpoint"})}
}

// endpoints are what a request can be about: the words of the paths below a
// scope, the registry, and the rest. There are no others.
var endpoints = []string{"chains", "manifests", "trees", "indexes", "locations", "packs", "chunks", "key", "images", "traces", "registry", "other"}

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

// counted counts what next answers.
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

// scrapeTimeout bounds the making of one answer.
const scrapeTimeout = 10 * time.Second

// register adds the view's paths. Before the hub answers at all it is not ready,
// and from then on it is until it stops.
func (v *view) register(mux *http.ServeMux) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(v, v.requests, v.seconds, collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(v.log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: 4, Timeout: scrapeTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if v.stopping.Load() {
			say(w, http.StatusServiceUnavailable, "it stops")
			return
		}
		say(w, http.StatusOK, "ok")
	})
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n")) // the client is gone: nobody to tell
}

var (
	imagesDesc       = desc("images", "Images that the hub knows, by their state.", "state")
	tracesDesc       = desc("traces_total", "Traces that nodes have sent, by what became of them.", "result")
	layoutsDesc      = desc("layouts_total", "Trees for which startup packs were made, and those that were given up.", "result")
	traceBytesDesc   = desc("trace_bytes", "Bytes that are kept of traces, compressed.")
	startupPacksDesc = desc("startup_packs", "Startup packs that are served, with those that have retired.")
	startupBytesDesc = desc("startup_pack_bytes", "Bytes of these packs.")
	liveBytesDesc    = desc("startup_pack_live_bytes", "Bytes of those of these packs that locations name.")
	limitBytesDesc   = desc("startup_pack_limit_bytes", "The most that the packs may take that locations name.")
	lostDesc         = desc("startup_packs_lost", "Trees that have lost their startup packs because others were used more recently.")
	waitingDesc      = desc("layouts_waiting", "Trees that wait for new startup packs.")
	droppedDesc      = desc("log_lines_dropped_total", "Lines of the log that were dropped because nobody read it.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(metricPrefix+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (v *view) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{imagesDesc, tracesDesc, layoutsDesc, traceBytesDesc, startupPacksDesc, startupBytesDesc,
		liveBytesDesc, limitBytesDesc, lostDesc, waitingDesc, droppedDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (v *view) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	out <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(logqueue.Dropped(v.log)))
	states, err := v.catalog.States(ctx)
	if err != nil {
		v.log.Warn("the metrics say nothing of images", "cause", err)
		return
	}
	for _, state := range []string{wire.StateQueued, wire.StateActive, wire.StateReady, wire.StateFailed, wire.StateStored} {
		out <- prometheus.MustNewConstMetric(imagesDesc, prometheus.GaugeValue, float64(states[state]), state)
	}
	v.collectStarts(ctx, out)
}

func (v *view) collectStarts(ctx context.Context, out chan<- prometheus.Metric) {
	counts := v.starts.Counts()
	count := func(d *prometheus.Desc, n int64, result string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), result)
	}
	count(tracesDesc, counts.Taken, "taken")
	count(tracesDesc, counts.Refused, "refused")
	count(layoutsDesc, counts.Laid, "made")
	count(layoutsDesc, counts.Failed, "failed")
	held, err := v.catalog.StartHoldings(ctx)
	limit, limitErr := v.starts.Limit(ctx)
	if err = errors.Join(err, limitErr); err != nil {
		v.log.Warn("the metrics say nothing of startup packs", "cause", err)
		return
	}
	for d, n := range map[*prometheus.Desc]int64{traceBytesDesc: held.TraceBytes, startupPacksDesc: held.Packs,
		startupBytesDesc: held.PackBytes,
		liveBytesDesc:    held.Live, limitBytesDesc: limit, lostDesc: held.Lost, waitingDesc: held.Waiting} {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
}
