// Package plot draws the benchmarks' figures as small SVGs. Equal values give equal bytes. It uses
// neither files nor clocks.
package plot

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
)

// Bars is a chart of horizontal stacked bars, in groups.
type Bars struct {
	Title  string
	Unit   string   // of the values
	Parts  []string // names of the parts of a bar, from the left
	Groups []Group
}

// Group is a named group of bars.
type Group struct {
	Name string
	Bars []Bar
}

// Bar is a stacked bar.
type Bar struct {
	Name  string
	Parts []float64
	Note  string // text at the end of the bar
}

// colors can be distinguished by colour-blind people.
var colors = []string{"#4477aa", "#ddaa33", "#bb5566", "#228833", "#aa3377", "#66ccee", "#777777", "#000000"}

func color(i int) string { return colors[i%len(colors)] }

// isDashed reports whether series i repeats a colour, so that its line has to be dashed.
func isDashed(i int) bool { return i >= len(colors) }

// Sizes, in pixels.
const (
	width    = 920 // of the chart
	left     = 210 // x coordinate of the axis; names are left of it
	right    = 150 // width of the space for the longest bar's note
	barRoom  = 15  // distance from bar to bar
	barHigh  = 12  // height of a bar
	headRoom = 18  // height of a group's name
	top      = 62  // y coordinate of the first group, below one row of the legend
	keyLeft  = 60  // x coordinate of the legend
	keyRow   = 16  // distance from row to row of the legend
	bottom   = 34  // height of the axis
)

// SVG draws the chart.
func (b Bars) SVG() []byte {
	top := below(b.Parts)
	height, most := top+bottom, 0.0
	for _, g := range b.Groups {
		height += headRoom + barRoom*len(g.Bars)
		for _, bar := range g.Bars {
			most = max(most, sum(bar.Parts))
		}
	}
	c := newCanvas(width, height, b.Title)
	c.legend(b.Parts)
	axis := newAxis(most, left, width-right)
	c.verticals(axis, top-8, height-bottom, b.Unit)
	y := top
	for _, g := range b.Groups {
		c.text(8, y+11, "bold", g.Name)
		y += headRoom
		for _, bar := range g.Bars {
			c.text(24, y+10, "", bar.Name)
			from := 0.0
			for i, part := range bar.Parts {
				x, to := axis.at(from), axis.at(from+part)
				c.printf(`<rect x="%s" y="%d" width="%s" height="%d" fill="%s"/>`, number(x), y, number(to-x), barHigh,
					color(i))
				from += part
			}
			c.text(int(axis.at(from))+5, y+10, "", bar.Note)
			y += barRoom
		}
	}
	return c.end()
}

func sum(values []float64) (s float64) {
	for _, v := range values {
		s += v
	}
	return s
}

// canvas is an SVG under construction.
type canvas struct{ bytes.Buffer }

func newCanvas(width, height int, title string) *canvas {
	c := &canvas{}
	c.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d"`+
		` font-family="sans-serif" font-size="11">`, width, height, width)
	c.printf(`<rect width="%d" height="%d" fill="#ffffff"/>`, width, height)
	c.printf(`<text x="8" y="20" font-size="14" font-weight="bold">%s</text>`, escape(title))
	return c
}

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(&c.Buffer, format+"\n", args...) }

func (c *canvas) text(x, y int, weight, text string) {
	if text == "" {
		return
	}
	if weight != "" {
		weight = fmt.Sprintf(` font-weight="%s"`, weight)
	}
	c.printf(`<text x="%d" y="%d"%s>%s</text>`, x, y, weight, escape(text))
}

// keyRows divides a legend into rows, and returns the x coordinates of the names' colours, by row.
func keyRows(names []string) [][]int {
	rows, x := [][]int{nil}, keyLeft
	for _, name := range names {
		room := 35 + 7*len(name)
		if last := len(rows) - 1; x+room > width && len(rows[last]) > 0 {
			rows, x = append(rows, nil), keyLeft
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], x)
		x += room
	}
	return rows
}

// below returns the y coordinate of the content below a legend.
func below(names []string) int { return top + keyRow*(len(keyRows(names))-1) }

// legend draws the legend of the colours.
func (c *canvas) legend(names []string) {
	i := 0
	for row, places := range keyRows(names) {
		y := 31 + keyRow*row
		for _, x := range places {
			c.printf(`<rect x="%d" y="%d" width="12" height="12" fill="%s"/>`, x, y, color(i))
			if isDashed(i) {
				c.printf(`<rect x="%d" y="%d" width="4" height="12" fill="#ffffff"/>`, x+4, y)
			}
			c.text(x+17, y+10, "", names[i])
			i++
		}
	}
}

// verticals draws an axis at the bottom, and a vertical line at each of its steps.
func (c *canvas) verticals(a axis, from, to int, unit string) {
	for v := 0.0; v <= a.most*1.0001; v += a.step {
		x := number(a.at(v))
		c.printf(`<line x1="%s" y1="%d" x2="%s" y2="%d" stroke="#cccccc"/>`, x, from, x, to)
		c.printf(`<text x="%s" y="%d" text-anchor="middle">%s</text>`, x, to+14, number(v))
	}
	c.printf(`<text x="%s" y="%d" text-anchor="middle">%s</text>`, number((a.from+a.to)/2), to+29, escape(unit))
}

func (c *canvas) end() []byte {
	c.printf("</svg>")
	return c.Bytes()
}

func escape(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // writes to a buffer do not fail
	return b.String()
}

// number formats a number with two decimals at most.
func number(f float64) string { return strconv.FormatFloat(math.Round(f*100)/100, 'f', -1, 64) }

// axis maps values from 0 to most to coordinates.
type axis struct{ most, step, from, to float64 }

// newAxis returns an axis with four to ten steps of 1, 2 or 5 times a power of ten.
func newAxis(most float64, from, to int) axis {
	if !(most > 0) {
		most = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, part := range []float64{1, 0.5, 0.2} {
		if most/(step*part) >= 4 {
			step *= part
			break
		}
	}
	return axis{most, step, float64(from), float64(to)}
}

func (a axis) at(v float64) float64 { return a.from + v/a.most*(a.to-a.from) }
