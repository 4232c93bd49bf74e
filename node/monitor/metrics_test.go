package monitor

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lighter/node/fuse"
	"lighter/node/mount"
	"lighter/node/report"
	"lighter/store"
	"lighter/store/origin"
)

// some returns figures that are not zero.
func some() (figures, bool) {
	f := figures{ready: true, devices: fuse.ServerStats{Failed: map[string]int64{}}}
	f.devices.Cached.Counts[3], f.devices.Cached.Sum = 2, 3e6
	f.devices.Fetched.Counts[fuse.LatencyBuckets] = 1
	f.status.Mounts = []report.MountStatus{{Mounted: mount.Mounted{}}}
	f.status.Fetched.InFlight = store.GateStats{Urgent: 1, Background: 2, UrgentWaiting: 3, BackgroundWaiting: 4}
	f.status.Images = []report.ImageStatus{{Lazy: true}, {Lazy: true}, {}}
	f.status.Hubs = []origin.Health{{URL: "https://one", Up: true, Requests: 5, Failures: 2, Bytes: 700},
		{URL: "https://two", Error: "it is gone"}}
	return f, true
}

// docs/metrics.md lists exactly the metrics of a node, with their types.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented, exposed []string
	row := regexp.MustCompile("(?m)^\\| `(" + metricPrefix + "\\w+)` \\| (\\w+)")
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, m[1]+" "+m[2])
	}
	families, err := newRegistry(some).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), metricPrefix) {
			exposed = append(exposed, f.GetName()+" "+strings.ToLower(f.GetType().String()))
		} else if !regexp.MustCompile("^(go|process|lighter_build)_").MatchString(f.GetName()) {
			t.Errorf("%s is not a metric of a node", f.GetName())
		}
	}
	slices.Sort(documented)
	slices.Sort(exposed)
	if !slices.Equal(documented, exposed) || len(exposed) < 20 {
		t.Errorf("documented metrics:\n%s\nexposed metrics:\n%s", strings.Join(documented, "\n"),
			strings.Join(exposed, "\n"))
	}
}

func TestMetricsFollowTheConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(newRegistry(some))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, metricPrefix) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// Metrics have the values of the figures, with the right labels and buckets.
func TestMetricValues(t *testing.T) {
	want := `
# HELP lighter_node_hub_failures_total Requests that a hub failed: no answer, or a wrong one.
# TYPE lighter_node_hub_failures_total counter
lighter_node_hub_failures_total{hub="https://one"} 2
lighter_node_hub_failures_total{hub="https://two"} 0
# HELP lighter_node_hub_up 0 while a hub is not used because it failed.
# TYPE lighter_node_hub_up gauge
lighter_node_hub_up{hub="https://one"} 1
lighter_node_hub_up{hub="https://two"} 0
# HELP lighter_node_images Images with snapshots on this machine, by whether they are lazy.
# TYPE lighter_node_images gauge
lighter_node_images{lazy="false"} 1
lighter_node_images{lazy="true"} 2
# HELP lighter_node_units_in_flight Requests for units in flight, for waiting readers or ahead of reads.
# TYPE lighter_node_units_in_flight gauge
lighter_node_units_in_flight{for="ahead"} 2
lighter_node_units_in_flight{for="reader"} 1
# HELP lighter_node_units_waiting Units that wait to be requested.
# TYPE lighter_node_units_waiting gauge
lighter_node_units_waiting{for="ahead"} 4
lighter_node_units_waiting{for="reader"} 3
`
	registry := newRegistry(some)
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "lighter_node_hub_up", "lighter_node_images",
		"lighter_node_hub_failures_total", "lighter_node_units_in_flight", "lighter_node_units_waiting"); err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != metricPrefix+"fault_duration_seconds" {
			continue
		}
		cached, fetched := f.Metric[0].Histogram, f.Metric[1].Histogram
		if cached.GetSampleCount() != 2 || cached.GetSampleSum() != 0.003 ||
			cached.Bucket[2].GetCumulativeCount() != 0 || cached.Bucket[3].GetCumulativeCount() != 2 {
			t.Errorf("reads from the cache: got %v, want 2 in the fourth bucket", cached)
		}
		if last := len(fetched.Bucket) - 1; fetched.GetSampleCount() != 1 ||
			fetched.Bucket[last].GetCumulativeCount() != 0 {
			t.Errorf("reads from the hub: got %v, want 1 beyond the last bucket", fetched)
		}
	}
}

// A node that starts has no figures yet.
func TestNoFiguresBeforeTheNodeExists(t *testing.T) {
	s := someServer(t, "127.0.0.1:0")
	defer s.Close()
	if f, ok := s.figures(); ok {
		t.Errorf("got %+v, want none", f)
	}
}
