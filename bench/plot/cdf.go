package plot

import "slices"

// CDF is a chart of cumulative distribution functions, one for each series.
type CDF struct {
	Title  string
	X      string // label of the x axis
	Series []Series
}

// Series is a named set of values.
type Series struct {
	Name   string
	Values []float64
}

const (
	cdfLeft   = 60  // x coordinate of the y axis
	cdfHeight = 360 // of the chart, with one row of the legend
)

// SVG draws the chart.
func (d CDF) SVG() []byte {
	most := 0.0
	var names []string
	for _, s := range d.Series {
		names = append(names, s.Name)
		for _, v := range s.Values {
			most = max(most, v)
		}
	}
	high := below(names)
	low := cdfHeight - bottom + high - top
	c := newCanvas(width, low+bottom, d.Title)
	c.legend(names)
	x := newAxis(most, cdfLeft, width-30)
	c.verticals(x, high, low, d.X)
	for percent := 0; percent <= 100; percent += 25 {
		y := low - (low-high)*percent/100
		c.printf(`<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#cccccc"/>`, cdfLeft, y, width-30, y)
		c.printf(`<text x="%d" y="%d" text-anchor="end">%d %%</text>`, cdfLeft-6, y+4, percent)
	}
	for i, s := range d.Series {
		if len(s.Values) == 0 {
			continue
		}
		path := "M" + number(x.at(0)) + " " + number(float64(low))
		for n, v := range slices.Sorted(slices.Values(s.Values)) {
			path += " H" + number(x.at(v)) + " V" +
				number(float64(low)-float64(low-high)*float64(n+1)/float64(len(s.Values)))
		}
		dash := ""
		if isDashed(i) {
			dash = ` stroke-dasharray="6 3"`
		}
		c.printf(`<path d="%s H%s" fill="none" stroke="%s" stroke-width="2"%s/>`, path, number(x.at(most)), color(i),
			dash)
	}
	return c.end()
}
