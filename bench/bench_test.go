package bench

import (
	"slices"
	"strings"
	"testing"

	"lighter/wire"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5}} {
		before := slices.Clone(c.values)
		if got := Median(c.values); got != c.want {
			t.Errorf("median of %v: got %v, want %v", c.values, got, c.want)
		}
		if !slices.Equal(before, c.values) {
			t.Errorf("Median changed its argument to %v, want %v", c.values, before)
		}
	}
}

func TestNumbersHaveThreeSignificantDigits(t *testing.T) {
	for got, want := range map[string]string{
		Seconds(0.0123): "12 ms", Seconds(0.555): "0.56 s", Seconds(12.87): "12.9 s",
		Size(512): "0.5 kB", Size(5_140_000): "5.14 MB", Size(407_100_000): "407.1 MB", Size(1_200_000_000): "1.20 GB",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTheDefaultConfiguration(t *testing.T) {
	c, err := ReadConfig("")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(c.Workloads()); n < 12 {
		t.Errorf("got %d workloads, want at least 12", n)
	}
	var serving int
	for _, w := range c.Workloads() {
		if w.Serves() {
			serving++
		}
	}
	if serving < 4 {
		t.Errorf("got %d workloads that are servers, want at least 4", serving)
	}
	for i, want := range []string{"1gbit 500µs", "1gbit 10ms", "1gbit 50ms", "100mbit 10ms"} {
		rtt, err := c.Links[i].RTT.MarshalText()
		if got := c.Links[i].Rate + " " + string(rtt); got != want || err != nil {
			t.Errorf("link %d: got %q, want %q: %v", i, got, want, err)
		}
	}
}

func TestInvalidConfigurations(t *testing.T) {
	const image = "[[image]]\nname = \"a\"\n[[image.workload]]\nname = \"w\"\n"
	for text, wanted := range map[string]string{
		"rounds = 0":        "at least 1",
		"round = 3":         "round",
		image:               "a/w: it has no argv",
		image + "argv = []": "a/w: it has no argv",
		image + "argv = [\"x\"]\nready_line = \"(\"":                  "missing closing",
		image + "argv = [\"x\"]\nready_line = \"y\"\nready_port = 80": "not both",
		image + "argv = [\"x\"]\nready_path = \"y\"":                  "needs a ready_port",
		image + "argv = [\"x\"]\nready_port = 80000":                  "ready_port is 80000, want 1 to 65535",
		image + "argv = [\"x\"]\nready_port = -1":                     "ready_port is -1, want 1 to 65535",
		image + "argv = [\"x\"]\n" + image + "argv = [\"x\"]":         "image a is configured twice",
		"[[image]]\nname = \"../a\"":                                  "lower-case letters",
		"[[link]]\nname = \"l\"\nworkloads = [\"a/w\"]":               "there is no workload a/w",
		"[[link]]\nname = \"l\"\nrtt = \"-1s\"":                       "-1s is negative",
		"[[peer]]\nname = \"p\"":                                      "no snapshotter",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%q: got error %v, want %q in it", text, err, wanted)
		}
	}
}

func TestDescribe(t *testing.T) {
	got := describe(wire.Starts{Workloads: make([]wire.Workload, 2),
		Packs: []wire.StartupPack{{Bytes: 5e6, AtMount: true}, {Bytes: 2e6}}})
	if want := "2 workloads, 2 startup packs of 7.00 MB, of which 5.00 MB are fetched at each mount"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
