package many

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/trace"
)

func TestQuantiles(t *testing.T) {
	var hundred []float64
	for i := range 100 {
		hundred = append(hundred, float64(100-i))
	}
	for _, test := range []struct {
		values []float64
		want   Quantiles
	}{
		{nil, Quantiles{}},
		{[]float64{7}, Quantiles{7, 7, 7, 7}},
		{[]float64{2, 1}, Quantiles{1, 2, 2, 2}},
		{hundred, Quantiles{50, 90, 99, 100}},
		{append(slices.Clone(hundred), 101), Quantiles{51, 91, 100, 101}},
	} {
		if got := quantiles(test.values); got != test.want {
			t.Errorf("%d values: %+v, want %+v", len(test.values), got, test.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("quantiles changed its argument")
	}
}

// slow is a device with slow reads.
type slow struct {
	takes time.Duration
	reads []trace.Read // with the time of their arrival
	begun time.Time
	fails int64 // the read at this offset waits until its context ends; -1: no read does
}

func (s *slow) ReadAt(ctx context.Context, dst []byte, offset int64) (missed int64, err error) {
	s.reads = append(s.reads, trace.Read{At: time.Since(s.begun), Offset: offset, Length: int64(len(dst))})
	if offset == s.fails {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}
	time.Sleep(s.takes)
	return 0, nil
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

var recorded = trace.Trace{Reads: []trace.Read{
	{At: ms(10), Offset: 4096, Length: 4096}, {At: ms(10), Offset: 0, Length: 8192},
	{At: ms(15), Offset: 1 << 20, Length: 2*piece + 4096}, {At: ms(16), Offset: 4096, Length: 4096}}}

// Each read follows the answer to the previous one, after the pause of the workload. Long reads are
// split.
func TestReplayKeepsThePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slow{takes: ms(100), begun: time.Now(), fails: -1}
		took, err := replay(t.Context(), d, recorded, []float64{9})
		if err != nil {
			t.Fatal(err)
		}
		want := []trace.Read{{At: ms(10), Offset: 4096, Length: 4096}, {At: ms(110), Offset: 0, Length: 8192},
			{At: ms(215), Offset: 1 << 20, Length: piece}, {At: ms(315), Offset: 1<<20 + piece, Length: piece},
			{At: ms(415), Offset: 1<<20 + 2*piece, Length: 4096},
			{At: ms(516), Offset: 4096, Length: 4096}}
		if !slices.Equal(d.reads, want) {
			t.Errorf("reads: got %v, want %v", d.reads, want)
		}
		if want := []float64{9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1}; !slices.Equal(took, want) {
			t.Errorf("durations of reads: got %v, want %v", took, want)
		}
	})
}

func TestReplayEndsAtFirstFailedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slow{begun: time.Now(), fails: 0}
		took, err := replay(t.Context(), d, recorded, nil)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "8192 bytes at 0") {
			t.Errorf("got error %v, want DeadlineExceeded of the read of 8192 bytes at 0", err)
		}
		if len(took) != 1 || time.Since(d.begun) != ms(10)+readTimeout {
			t.Errorf("%d reads succeeded in %s, want 1 in %s", len(took), time.Since(d.begun), ms(10)+readTimeout)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := replay(ctx, d, recorded, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("replay with an ended context: got %v, want Canceled", err)
		}
	})
}

func TestCountersOfSquid(t *testing.T) {
	const text = `sample_time = 1795292387.748138 (Sat, 21 Nov 2026 20:19:47 GMT)
client_http.requests = 400
client_http.hits = 320
client_http.errors = 1
client_http.kbytes_in = 50
client_http.kbytes_out = 1000
server.all.requests = 80
server.all.errors = 2
server.all.kbytes_in = 250
cpu_time = 0.822027
`
	got, err := parseCounters(strings.NewReader(text))
	want := Counters{Requests: 400, Hits: 320, Errors: 1, Bytes: 1_024_000, ServerRequests: 80, ServerErrors: 2,
		ServerBytes: 256_000, CPU: 0.822027}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if since := got.since(Counters{Requests: 399, CPU: 0.822027}); since.Requests != 1 || since.CPU != 0 ||
		since.ServerRequests != 80 {
		t.Errorf("difference of counters: %+v", since)
	}
	if got.HitRatio() != 0.8 || (Counters{}).HitRatio() != 0 {
		t.Errorf("hit ratio: got %v", got.HitRatio())
	}
	if _, err := parseCounters(strings.NewReader(strings.Replace(text, "server.all.requests", "other",
		1))); err == nil {
		t.Error("parse without a required counter succeeded, want an error")
	}
}

func TestMetricsOfTheHub(t *testing.T) {
	var v view
	err := v.readHub(strings.NewReader(`# HELP lighter_hub_requests_total Requests
lighter_hub_requests_total{code="200",endpoint="packs"} 75
lighter_hub_requests_total{code="404",endpoint="packs"} 2
lighter_hub_requests_total{code="200",endpoint="chains"} 1
lighter_hub_requests_total{code="200",endpoint="other"} 9
process_cpu_seconds_total 1.5
`))
	if err != nil || v.requests["packs"] != 77 || v.requests["chains"] != 1 || len(v.requests) != 2 || v.errors != 2 ||
		v.hubCPU != 1.5 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestCellSumsUp(t *testing.T) {
	o := Outcome{Wall: 4, User: 3, System: 1, Reads: []float64{0.5, 0.25}, Squid: Counters{ServerBytes: 77, CPU: 2},
		Starts: []Start{{Pull: 1, Done: 3, Bytes: 10, Requests: 2},
			{Pull: 2, Done: 4, Bytes: 20, Requests: 3, Refused: 2, Why: "late", Failed: 1},
			{Error: "it broke", Bytes: 5}}}
	before := view{link: 100, requests: map[string]int64{"packs": 1}, hubCPU: 1, all: 1000, idle: 500}
	after := view{link: 1100, requests: map[string]int64{"packs": 5, "chains": 2}, errors: 1, hubCPU: 2, own: 0.5,
		all: 2000, idle: 750}
	c := Cell{Position: NearNodes}
	c.sum(o, before, after)
	if c.Done != (Quantiles{3, 4, 4, 4}) || c.Pull.P99 != 2 || c.Reads.Max != 0.5 || c.Count != 2 {
		t.Errorf("times %+v %+v %+v", c.Done, c.Pull, c.Reads)
	}
	if c.Bytes != 35 || c.Requests != 5 || c.refused() != 1 || c.Refused["late"] != 1 || c.Failed != 1 ||
		c.FailedStarts != 1 || c.Error != "it broke" {
		t.Errorf("sums %+v", c)
	}
	if c.LinkBytes != 1000 || c.HubBytes != 1000 || c.hubRequests() != 6 || c.HubErrors != 1 || c.Busy != 0.75 {
		t.Errorf("seen %+v", c)
	}
	if got := c.processorUse(4); got != (4+2+1+0.5)/16 {
		t.Errorf("processors %v", got)
	}
	if got := c.linkUse(4000); got != 0.5 {
		t.Errorf("link %v", got)
	}
	far := Cell{Position: NearHub}
	if far.sum(o, before, after); far.HubBytes != 77 {
		t.Errorf("behind Squid the hub sent %d bytes", far.HubBytes)
	}
}

// measured is a result for which the model returns round figures.
var measured = Result{Rate: "1gbit", RTT: ms(10), Cores: 4,
	Cells: []Cell{
		{Workload: "a/b", Position: Direct, Nodes: 1, Bytes: 5_000_000, Requests: 100, Done: Quantiles{P50: 1},
			HubCPU: 99},
		{Workload: "a/b", Position: Direct, Nodes: 100, HubCPU: 1.04},
		{Workload: "a/b", Position: Direct, Nodes: 200, HubCPU: 100, FailedStarts: 1},
		{Workload: "a/b", Position: NearNodes, Nodes: 200, Bytes: 1e9, Requests: 20_000, Done: Quantiles{P50: 7},
			Squid: Counters{CPU: 4}}},
	Rates: []Rate{{Workload: "a/b", Of: "hub", What: "chains", CPU: 400e-6},
		{Workload: "c/d", Of: "hub", What: "chains", CPU: 1},
		{Workload: "a/b", Of: "hub", What: "units", CPU: 1}}}

func TestModel(t *testing.T) {
	p, ok := measured.Parameters("a/b")
	if !ok || p.Bytes != 5e6 || p.Requests != 100 || p.Alone != 1 || p.Link != 1e9 {
		t.Fatalf("parameters %+v, %t", p, ok)
	}
	if _, ok := measured.Parameters("c/d"); ok {
		t.Error("got parameters of a workload without figures")
	}
	for _, test := range []struct {
		squids int
		want   []float64
		slow   string
	}{
		{0, []float64{1, 25, 400}, "hub's link"},
		{1, []float64{0.0001, 0.0025, 0.04, 200, 40}, "a Squid's processor"},
		{100, []float64{0.01, 0.25, 4, 2, 0.4}, "hub's link"},
	} {
		l := p.Model(10_000, test.squids, 4, 10e9)
		for i, resource := range l.Resources {
			if math.Abs(resource.Seconds-test.want[i]) > 1e-9 {
				t.Errorf("%d Squids: load of %s: got %v s, want %v",
					test.squids, resource.Name, resource.Seconds, test.want[i])
			}
		}
		if len(l.Resources) != len(test.want) || l.Slowest().Name != test.slow {
			t.Errorf("%d Squids: %d resources, the slowest %s", test.squids, len(l.Resources), l.Slowest().Name)
		}
	}
}

func TestMarkdown(t *testing.T) {
	text := measured.Markdown()
	for _, want := range []string{"### a/b, 1gbit, 10ms", "| direct | 1 | 1.00 s |", "| squid | 200 at once |",
		"| 1 | 0.0 | 0.0 | 0.0 | 200.0 | 40.0 | 50 | 201 s: a Squid's processor |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text does not contain %q:\n%s", want, text)
		}
	}
	columns := 0
	for line := range strings.Lines(text) {
		n := strings.Count(line, "|")
		if n > 0 && columns > 0 && n != columns {
			t.Errorf("a row of %d columns in a table of %d: %s", n, columns, line)
		}
		columns = n
	}
}

func TestOptions(t *testing.T) {
	for problem, change := range map[string]func(*Options){
		"no workload":           func(o *Options) { o.Workloads = []string{"python/nothing"} },
		"no position":           func(o *Options) { o.Positions = []string{"around"} },
		"from 1 to 1000":        func(o *Options) { o.Nodes = []int{0} },
		"parse the link's rate": func(o *Options) { o.Rate = "fast" },
		"nothing to measure":    func(o *Options) { o.Nodes = nil },
	} {
		o := Default()
		if err := o.Check(); err != nil {
			t.Fatal(err)
		}
		if change(&o); o.Check() == nil || !strings.Contains(o.Check().Error(), problem) {
			t.Errorf("%s: %v", problem, o.Check())
		}
	}
}
