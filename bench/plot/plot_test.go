package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

var renew = flag.Bool("renew", false, "write the golden files again")

func TestGolden(t *testing.T) {
	for name, svg := range map[string][]byte{
		"bars.svg": Bars{Title: "Starts <all>", Unit: "seconds", Parts: []string{"pull", "create", "run"},
			Groups: []Group{
				{"base/echo", []Bar{{"overlayfs", []float64{2.2, 0.03, 0.2}, "2.43 s"},
					{"lighter", []float64{0.1, 0.05, 0.1}, "0.25 s & less"}}},
				{"ml/tensorflow", []Bar{{"overlayfs", []float64{17, 0.03, 4}, "21 s"}, {"none", nil, "not measured"}}},
			}}.SVG(),
		"cdf.svg": CDF{Title: "Read", X: "percent",
			Series: []Series{{"touched", []float64{9, 1, 3, 3}}, {"fetched", []float64{12, 2, 4}},
				{"none", nil}}}.SVG(),
		"many.svg":  CDF{Title: "Many", X: "percent", Series: many()}.SVG(),
		"empty.svg": Bars{Title: "Nothing"}.SVG(),
	} {
		wellFormed(t, name, svg)
		path := filepath.Join("testdata", name)
		if *renew {
			if err := os.WriteFile(path, svg, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(svg, want) {
			t.Errorf("%s differs from its golden file: check it, and run go test ./bench/plot -renew", name)
		}
	}
}

// many returns so many series that the legend has two rows, and colours repeat.
func many() (list []Series) {
	for i := range 11 {
		list = append(list, Series{fmt.Sprintf("snapshotter-%d", i), []float64{float64(i), 20 - float64(i)}})
	}
	return list
}

func wellFormed(t *testing.T, name string, svg []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Errorf("%s is not well-formed XML: %v", name, err)
			return
		}
	}
}

func TestAxis(t *testing.T) {
	for most, step := range map[float64]float64{10: 2, 21.5: 5, 4: 1, 0.9: 0.1, 650: 100, 0: 0.2, 2: 0.5} {
		if a := newAxis(most, 0, 100); a.step != step {
			t.Errorf("step of an axis up to %v: got %v, want %v", most, a.step, step)
		}
	}
}
