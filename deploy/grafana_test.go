package deploy

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// panel is a panel of a dashboard.
type panel struct {
	ID          int
	Type, Title string
	Datasource  struct{ Type, UID string }
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct {
		Expr, LegendFormat string
		Datasource         struct{ Type, UID string }
	}
}

// metricNames matches our metrics, and those of processes, in an expression.
var metricNames = regexp.MustCompile(`\b(lighter_(?:hub|node)_\w+|process_\w+|go_\w+)`)

// documented returns the metrics of docs/metrics.md, with their types. Tests of the hub and of the
// node compare that page with what they expose.
func documented(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]string{"process_resident_memory_bytes": "gauge", "process_cpu_seconds_total": "counter"}
	rows := regexp.MustCompile("(?m)^\\| (`lighter_.*?) \\| (\\w+)").FindAllStringSubmatch(string(text), -1)
	for _, row := range rows {
		for _, name := range strings.Split(row[1], ", ") {
			types[strings.Trim(name, "`")] = row[2]
		}
	}
	return types
}

// checkExpression fails the test unless all metrics of an expression exist, and counters and
// histograms are used as such.
func checkExpression(t *testing.T, where, expr string, types map[string]string) {
	t.Helper()
	names := metricNames.FindAllString(expr, -1)
	if len(names) == 0 {
		t.Errorf("%s: %s has no metric", where, expr)
	}
	for _, name := range names {
		base := strings.TrimSuffix(name, "_bucket")
		switch kind := types[base]; {
		case kind == "":
			t.Errorf("%s: docs/metrics.md has no metric %s", where, name)
		case kind == "histogram" && !strings.Contains(expr, "histogram_quantile("):
			t.Errorf("%s: %s is a histogram: want a quantile in %s", where, name, expr)
		case kind == "counter" && !regexp.MustCompile(`\b(rate|increase)\(`+name+`\b`).MatchString(expr):
			t.Errorf("%s: %s is a counter: want its rate or increase in %s", where, name, expr)
		case kind == "gauge" && regexp.MustCompile(`\b(rate|increase)\(`+name+`\b`).MatchString(expr):
			t.Errorf("%s: %s is a gauge, which has no rate: %s", where, name, expr)
		}
	}
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(expr, pair[:1]) != strings.Count(expr, pair[1:]) {
			t.Errorf("%s: %s in %s do not match", where, pair, expr)
		}
	}
}

// units returns the units that a panel with an expression may have.
func units(expr string) []string {
	name := metricNames.FindString(expr)
	rate := strings.Contains(expr, "rate(")
	switch {
	case strings.Contains(expr, "} / ") || strings.Contains(expr, ") / "):
		return []string{"percentunit"}
	case strings.HasPrefix(expr, "count("):
		return []string{"none"}
	case strings.Contains(expr, "histogram_quantile(") || strings.HasPrefix(expr, "time() - "):
		return []string{"s"}
	case strings.HasPrefix(name, "process_cpu_seconds"):
		return []string{"none"} // seconds in a second
	case strings.Contains(name, "_bytes") && rate:
		return []string{"Bps"}
	case strings.Contains(name, "_bytes"):
		return []string{"bytes"}
	case strings.HasSuffix(name, "_seconds"):
		return []string{"s"}
	case rate:
		return []string{"cps", "reqps"}
	}
	return []string{"none"}
}

// The dashboards have only metrics that exist, used by their types, with the right units. They name
// no data source.
func TestDashboards(t *testing.T) {
	types := documented(t)
	for _, file := range []string{"lighter-hubs.json", "lighter-nodes.json"} {
		text, err := os.ReadFile("grafana/" + file)
		if err != nil {
			t.Fatal(err)
		}
		var d struct {
			UID, Title string
			Templating struct {
				List []struct{ Name, Type, Query any }
			}
			Panels []panel
		}
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if d.UID+".json" != file || d.Title == "" || len(d.Panels) < 15 ||
			d.Templating.List[0].Name != "datasource" || d.Templating.List[0].Type != "datasource" {
			t.Errorf("%s: %s %q with %d panels, want a dashboard with a variable for the data source", file, d.UID,
				d.Title, len(d.Panels))
		}
		ids, titles := map[int]bool{}, map[string]bool{}
		for _, p := range d.Panels {
			where := file + ", " + p.Title
			if ids[p.ID] || titles[p.Title] {
				t.Errorf("%s: its ID or its title occurs twice", where)
			}
			ids[p.ID], titles[p.Title] = true, true
			if p.Type == "row" {
				continue
			}
			if p.Datasource.UID != "${datasource}" || p.Datasource.Type != "prometheus" || len(p.Targets) == 0 {
				t.Errorf("%s: data source %+v, %d targets", where, p.Datasource, len(p.Targets))
			}
			for _, target := range p.Targets {
				checkExpression(t, where, target.Expr, types)
				unit := p.FieldConfig.Defaults.Unit
				if want := units(target.Expr); !slices.Contains(want, unit) {
					t.Errorf("%s: the unit %q of %s, want one of %q", where, unit, target.Expr, want)
				}
				if target.Datasource != p.Datasource || target.LegendFormat == "" ||
					!strings.Contains(target.Expr, `instance=~"$instance"`) {
					t.Errorf("%s: target %+v, want the panel's data source, a legend, and the chosen instances",
						where, target)
				}
			}
		}
	}
}

// The alerts have only metrics that exist. Each says what to do.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile("kubernetes/hub/monitoring/prometheusrule.yaml")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../docs/runtimes/kubernetes-hub.md")
	if err != nil {
		t.Fatal(err)
	}
	types := documented(t)
	alerts := regexp.MustCompile(`(?m)- alert: (\w+)\n\s+expr: (.*)$`).FindAllStringSubmatch(string(text), -1)
	if n := strings.Count(string(text), "description: "); len(alerts) < 5 || n != len(alerts) {
		t.Errorf("there are %d alerts and %d descriptions", len(alerts), n)
	}
	for _, a := range alerts {
		checkExpression(t, a[1], a[2], types)
		if !strings.Contains(string(docs), "`"+a[1]+"`") {
			t.Errorf("docs/runtimes/kubernetes-hub.md does not explain the alert %s", a[1])
		}
	}
}
