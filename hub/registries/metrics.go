package registries

import (
	"cmp"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count requests by table: hosts without one are "other". So users cannot add labels.
type metrics struct {
	requests *prometheus.CounterVec
	rests    *prometheus.CounterVec
}

func newMetrics() metrics {
	const prefix = "lighter_hub_registry_"
	return metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests to other registries, by table of the configuration and status."},
			[]string{"registry", "code"}),
		rests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "rests_total",
			Help: "Pauses that other registries have asked for, by table of the configuration."},
			[]string{"registry"}),
	}
}

// otherLabel is the label of hosts without a table.
const otherLabel = "other"

// begin makes a table's metrics begin at 0.
func (m metrics) begin(table string) {
	m.rests.WithLabelValues(label(table))
	m.requests.WithLabelValues(label(table), "2xx")
}

func label(table string) string { return cmp.Or(table, otherLabel) }

// Requested implements registries.Observer.
func (m metrics) Requested(table string, status int) {
	code := "error"
	switch {
	case status == 401 || status == 403 || status == 404 || status == 429:
		code = strconv.Itoa(status)
	case status >= 100 && status < 600:
		code = strconv.Itoa(status/100) + "xx"
	}
	m.requests.WithLabelValues(label(table), code).Inc()
}

// Rests implements registries.Observer.
func (m metrics) Rests(table string) { m.rests.WithLabelValues(label(table)).Inc() }

// Describe implements prometheus.Collector.
func (r *Registries) Describe(out chan<- *prometheus.Desc) {
	r.metrics.requests.Describe(out)
	r.metrics.rests.Describe(out)
}

// Collect implements prometheus.Collector.
func (r *Registries) Collect(out chan<- prometheus.Metric) {
	r.metrics.requests.Collect(out)
	r.metrics.rests.Collect(out)
}
