package starts

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lighter/bench"
)

var renew = flag.Bool("renew", false, "write the golden files again")

// results returns made-up results of two links and two workloads.
func results(started time.Time) Result {
	r := Result{Format: resultFormat,
		Runs: []bench.About{{Started: started, Version: "v1", Kernel: "6.18.0", Processors: 4, Memory: 8e9}},
		Links: []bench.Link{{Name: "near", Rate: "1gbit", RTT: bench.Duration(500 * time.Microsecond)},
			{Name: "far", Rate: "100mbit", RTT: bench.Duration(50 * time.Millisecond)}},
		Images: []Image{{Name: "base", Layers: 1, Files: 7000, Size: 160e6, Compressed: 60e6},
			{Name: "db", Layers: 3, Files: 11000, Size: 400e6, Compressed: 100e6}},
	}
	for _, link := range []string{"near", "far"} {
		for _, w := range []string{"base/echo", "db/serve"} {
			image, name, _ := strings.Cut(w, "/")
			for way, total := range map[string]float64{Overlayfs: 4, LighterFirst: 0.9, Lighter: 0.5, LighterLocal: 0.4,
				"peer": 0.7} {
				for round := range 3 {
					s := Sample{Link: link, Image: image, Workload: name, Way: way, Round: round, Fetched: 1e6,
						Read: 4e6}
					s.Pull, s.Create, s.Ready, s.Run, s.Second = total/2+float64(round)/100, total/10, total/10,
						total*0.4, total/5
					s.SecondCreate, s.SecondReady, s.SecondBytes = total/20, total/10, int64(total*1e5)
					s.PullBytes, s.ReadyBytes, s.Bytes = int64(total*1e6), int64(total*2e6), int64(total*3e6)
					r.Samples = append(r.Samples, s)
				}
			}
		}
	}
	slices.SortFunc(r.Samples, func(a, b Sample) int { // the order of a map is random
		return strings.Compare(a.Link+a.Image+a.Way+string(rune(a.Round)), b.Link+b.Image+b.Way+string(rune(b.Round)))
	})
	return r
}

var day = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestGoldenTable(t *testing.T) {
	got := summarize(results(day)).markdown()
	path := filepath.Join("testdata", "starts.md")
	if *renew {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the table differs from its golden file: check it, and run go test ./bench/starts -renew\n%s", got)
	}
}

func TestFloorAndVerdicts(t *testing.T) {
	s := summarize(results(day))
	echo := workload{"base", "echo"}
	near := s.line("near", echo, Lighter)
	if near.rounds != 3 || !equal(near.total.median, 0.51) || !equal(near.total.least, 0.5) ||
		!equal(near.total.most, 0.52) {
		t.Errorf("lighter: got %d rounds, total %+v; want 3 rounds, median 0.51, least 0.5, most 0.52",
			near.rounds, near.total)
	}
	// The workload reads 4 MB of an image of 160 MB, 60 MB compressed.
	if got := s.touchedCompressed(echo); got != 1.5e6 {
		t.Errorf("compressed bytes touched: got %v, want 1.5e6", got)
	}
	if got, want := s.floor(s.Links[0], echo), 0.41+1.5e6/125e6+3*0.0005; !equal(got, want) {
		t.Errorf("floor: got %v, want %v", got, want)
	}
	if got, want := s.floor(s.Links[1], echo), 0.41+1.5e6/12.5e6+3*0.05; !equal(got, want) {
		t.Errorf("floor over the far link: got %v, want %v", got, want)
	}
	if best := s.bestOther("near", echo); best.way != "peer" {
		t.Errorf("best other: got %s, want peer", best.way)
	}
	verdicts := s.of(echo)
	if len(verdicts) != 6 || verdicts[1].target != otherRatio || verdicts[5].target != 2 || verdicts[4].missed() {
		t.Errorf("got the verdicts %+v, want six, with the targets %v in the second and 2 in the last, the fifth met",
			verdicts, otherRatio)
	}
	r := results(day)
	r.Samples = slices.DeleteFunc(r.Samples, func(x Sample) bool { return x.Way == "peer" || x.Way == LighterFirst })
	s = summarize(r)
	if v := s.of(echo); len(v) != 5 || v[1].target != slowRatio {
		t.Errorf("verdicts if all other ways are slow: got %+v, want five, with the target %v in the second", v,
			slowRatio)
	}
	r.Samples = slices.DeleteFunc(r.Samples, func(x Sample) bool { return x.Way == LighterLocal })
	s = summarize(r)
	if v := s.of(echo); len(v) != 1 {
		t.Errorf("verdicts without lighter-local: got %+v, want one", v)
	}
}

// of returns the verdicts of a workload over the first link.
func (s summary) of(w workload) []verdict {
	return slices.DeleteFunc(s.verdicts(s.Links[0]), func(v verdict) bool { return v.what != w.String() })
}

// Ways without a hub are compared with the peers and with Lighter, each workload and their mean.
func TestVerdictsWithoutAHub(t *testing.T) {
	r := results(day)
	r.Samples = slices.DeleteFunc(r.Samples, func(x Sample) bool { return x.Way != Lighter })
	r.Images[1].Name = "sci" // instead of db
	for i := range r.Samples {
		r.Samples[i].Image = strings.Replace(r.Samples[i].Image, "db", "sci", 1)
	}
	for _, x := range slices.Clone(r.Samples) {
		ours := 1.0 // the workload of base is faster than its peer, that of sci slower
		if x.Image == "sci" {
			ours = 2.25
		}
		for way, factor := range map[string]float64{soci: 2, lighterSOCI: 2 * 0.4 * ours, attached: ours, eStargz: 3} {
			x.Way, x.Bytes = way, 0
			x.Start = bench.Start{Pull: factor, Second: factor, CreateBytes: int64(1e6 * factor)}
			r.Samples = append(r.Samples, x)
		}
	}
	s := summarize(r)
	var got []string
	for _, v := range s.verdicts(s.Links[0]) {
		if v.missed() {
			v.figure += ", missed"
		}
		got = append(got, fmt.Sprintf("%s: %s: %.3f of %.3g", v.what, v.figure, v.value, v.target))
	}
	want := []string{
		"base/echo: total, lighter-soci : soci: 0.400 of 1",
		"base/echo: total, lighter-attached : soci: 0.500 of 0.6",
		"base/echo: bytes before the first process, lighter-attached : soci: 0.500 of 0",
		"base/echo: second start, lighter-attached : lighter: 10.000 of 0",
		"sci/serve: total, lighter-soci : soci: 0.900 of 1",
		"sci/serve: total, lighter-attached : soci, missed: 1.125 of 0.6",
		"sci/serve: bytes before the first process, lighter-attached : soci, missed: 1.125 of 0.25",
		"sci/serve: second start, lighter-attached : lighter: 22.500 of 0",
		"geometric mean of 2: total, lighter-soci : soci: 0.600 of 0.7",
		"geometric mean of 2: second start, lighter-attached : lighter, missed: 15.000 of 1.05",
	}
	// The peer's total is that of "best other", too. Lighter's figures have tests of their own.
	got = slices.DeleteFunc(got, func(v string) bool { return strings.Contains(v, "best other") })
	if !slices.Equal(got, want) {
		t.Errorf("got the verdicts\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	far := s.verdicts(s.Links[1])
	if v := far[len(far)-2]; v.target != 0.5 || !v.missed() {
		t.Errorf("the mean over a link of 50 ms: got %+v, want the target 0.5, missed", v)
	}
	if text := s.markdown(); !strings.Contains(text,
		"|1 Gbit/s, 0.5 ms|geometric mean of 2|total, lighter-soci : soci|0.60|≤ 0.7|PASS|") {
		t.Errorf("the table has no line of the mean:\n%s", text)
	}
}

func TestComparedPeersAreConfigured(t *testing.T) {
	config, err := bench.ReadConfig("")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{eStargz, soci, lighterEStargz, lighterSOCI, attached, attachedTraced} {
		if !slices.ContainsFunc(config.Peers, func(p bench.Peer) bool { return p.Name == name }) {
			t.Errorf("the default configuration has no peer %s", name)
		}
	}
}

func equal(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

func TestMergeKeepsTheLatest(t *testing.T) {
	old, recent := results(day), results(day.Add(time.Hour))
	recent.Samples = slices.DeleteFunc(recent.Samples,
		func(s Sample) bool { return s.Way != Lighter || s.Link != "near" || s.Round > 1 })
	for i := range recent.Samples {
		recent.Samples[i].Pull = 9
	}
	recent.Links[0].Workloads = []string{"base/echo"} // only a part was measured
	m, err := Merge(recent, old)                      // in any order
	if err != nil {
		t.Fatal(err)
	}
	s := summarize(m)
	if l := s.line("near", workload{"base", "echo"}, Lighter); l.rounds != 2 || l.pull.median != 9 {
		t.Errorf("a cell of both results: got %d rounds, pull %+v; want the 2 rounds of the later one, pull 9",
			l.rounds, l.pull)
	}
	if l := s.line("far", workload{"base", "echo"}, Lighter); l.rounds != 3 || l.pull.median == 9 {
		t.Errorf("a cell of one result: got %d rounds, pull %+v; want its 3 rounds", l.rounds, l.pull)
	}
	if len(m.Runs) != 2 || len(m.Links) != 2 || len(m.Images) != 2 {
		t.Errorf("got %d runs, %d links, %d images, want 2 of each", len(m.Runs), len(m.Links), len(m.Images))
	}
	if again, err := Merge(m, m); err != nil || len(again.Samples) != len(m.Samples) || len(again.Runs) != 2 {
		t.Errorf("merged with itself: got %d samples, want %d: %v", len(again.Samples), len(m.Samples), err)
	}
	other := results(day)
	other.Images[0].Compressed++
	other.Links[1].RTT++
	if _, err := Merge(old, other); err == nil || !strings.Contains(err.Error(), "image base") ||
		!strings.Contains(err.Error(), "link far") {
		t.Errorf("merge of different images and links: %v, want an error", err)
	}
}

func TestResultsAreReadBack(t *testing.T) {
	dir, r := filepath.Join(t.TempDir(), "new"), results(day)
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := Read(filepath.Join(dir, "starts.json"))
	if err != nil || len(got.Samples) != len(r.Samples) || got.Samples[7] != r.Samples[7] ||
		got.Links[1].RTT != r.Links[1].RTT {
		t.Errorf("read back: got %d samples (%v), want the %d that were written", len(got.Samples), err, len(r.Samples))
	}
	for _, name := range []string{"starts.md", "starts-near.svg", "again-near.svg", "bytes-far.svg", "read.svg"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("stat %s: %v, want a file that is not empty", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "other.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(filepath.Join(dir, "other.json")); err == nil {
		t.Error("a JSON file of another format was accepted")
	}
}

func TestOptionsChooseAPart(t *testing.T) {
	p, err := Options{Only: []string{"sci/cppyy", "base"}, Links: []string{"1gbit-0.5ms", "1gbit-10ms"},
		Snapshotters: []string{Lighter}, Rounds: 7}.plan()
	if err != nil {
		t.Fatal(err)
	}
	if joined(p.workloads) != "base/echo, sci/cppyy" || len(p.Links) != 2 || p.Rounds != 7 ||
		!slices.Equal(p.ways, []string{Lighter}) {
		t.Errorf("got workloads %s, %d links, %d rounds, ways %v", joined(p.workloads), len(p.Links), p.Rounds, p.ways)
	}
	if n := p.cells(); n != 3 { // base is measured over only one of the links
		t.Errorf("got %d cells, want 3", n)
	}
	for _, o := range []Options{{Only: []string{"base/nothing"}}, {Links: []string{"slow"}},
		{Snapshotters: []string{"none"}}, {Config: "/nonexistent"}} {
		if o.Check() == nil {
			t.Errorf("invalid options were accepted: %+v", o)
		}
	}
}

func TestPairsOfTwoBuilds(t *testing.T) {
	r := results(day)
	for _, x := range slices.Clone(r.Samples) {
		if x.Way == Lighter && x.Link == "near" && x.Image == "base" {
			x.Way = LighterBefore
			x.Pull, x.Create, x.Run = x.Pull*2, x.Create*2, x.Run*2
			if x.Round == 2 {
				x.Bytes = 0 // unknown: the round does not count
			}
			r.Samples = append(r.Samples, x)
		}
	}
	s := summarize(r)
	total := s.pairs("near", workload{"base", "echo"}, func(x Sample) float64 { return x.Total() })
	if total.rounds != 3 || !equal(total.mean, 0.5) || !equal(total.error, 0) {
		t.Errorf("a build that takes half as long: got %+v, want 3 rounds and a mean of 0.5", total)
	}
	if bytes := s.pairs("near", workload{"base", "echo"},
		func(x Sample) float64 { return float64(x.Bytes) }); bytes.rounds != 2 || !equal(bytes.mean, 1) {
		t.Errorf("builds with equal bytes, known in 2 rounds: got %+v, want 2 rounds and a mean of 1", bytes)
	}
	if none := s.pairs("far", workload{"base", "echo"}, func(x Sample) float64 { return x.Total() }); none.rounds != 0 {
		t.Errorf("pairs without figures of the other build: got %+v, want none", none)
	}
	if text := s.markdown(); !strings.Contains(text, "Ratios of lighter to lighter-before") ||
		strings.Count(text, "0.500 ± 0.000") != 3 {
		t.Errorf("the table of the two builds is missing, or wrong:\n%s", text)
	}
}
