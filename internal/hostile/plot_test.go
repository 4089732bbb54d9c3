package hostile_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// median returns the median of the column in some samples.
func (c *series) median(samples []sample) float64 {
	values := make([]float64, len(samples))
	for i := range samples {
		values[i] = c.value(&samples[i])
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// table returns the samples as CSV.
func table(samples []sample) string {
	var text strings.Builder
	text.WriteString("seconds")
	for _, c := range columns {
		fmt.Fprintf(&text, ",%s (%s)", c.name, c.unit)
	}
	for i := range samples {
		fmt.Fprintf(&text, "\n%.0f", samples[i].at.Seconds())
		for _, c := range columns {
			fmt.Fprintf(&text, ",%.2f", c.value(&samples[i]))
		}
	}
	return text.String() + "\n"
}

// Sizes of the plot in pixels.
const (
	plotWidth  = 860
	panel      = 110 // of one column
	plotLeft   = 150
	plotTop    = 40
	panelSpace = 26
)

// plot returns an SVG with one panel per column. Every panel begins at 0.
func plot(samples []sample, title string) string {
	height := plotTop + len(columns)*panel + 20
	var svg strings.Builder
	svg.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12" `)
	fmt.Fprintf(&svg, `width="%d" height="%d">`+"\n", plotWidth, height)
	fmt.Fprintf(&svg, `<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="22" font-size="15">%s</text>`+"\n",
		plotLeft, title)
	end := samples[len(samples)-1].at.Seconds()
	right := float64(plotWidth - 20)
	for row, c := range columns {
		top := float64(plotTop + row*panel)
		bottom := top + panel - panelSpace
		most := 0.0
		for i := range samples {
			most = max(most, c.value(&samples[i]))
		}
		most = ceiling(most)
		var points strings.Builder
		for i := range samples {
			x := plotLeft + samples[i].at.Seconds()/end*(right-plotLeft)
			fmt.Fprintf(&points, "%.1f,%.1f ", x, bottom-c.value(&samples[i])/most*(bottom-top))
		}
		fmt.Fprintf(&svg, `<text x="10" y="%.0f">%s</text><text x="10" y="%.0f" fill="#666">%s</text>`+"\n",
			top+30, c.name, top+46, c.unit)
		for y, value := range map[float64]float64{top + 8: most, bottom: 0} {
			fmt.Fprintf(&svg, `<text x="%d" y="%.0f" text-anchor="end">%g</text>`+"\n", plotLeft-6, y, value)
		}
		fmt.Fprintf(&svg, `<path d="M%d %.0fV%.0fH%.0f" fill="none" stroke="#999"/>`+"\n", plotLeft, top, bottom, right)
		fmt.Fprintf(&svg, `<polyline points="%s" fill="none" stroke="#1565c0" stroke-width="1.5"/>`+"\n",
			strings.TrimSpace(points.String()))
	}
	for i := range 7 {
		at := end * float64(i) / 6
		fmt.Fprintf(&svg, `<text x="%.0f" y="%d" text-anchor="middle">%s</text>`+"\n",
			plotLeft+at/end*(right-plotLeft), height-14, time.Duration(at*float64(time.Second)).Round(time.Second))
	}
	return svg.String() + "</svg>\n"
}

// ceiling returns the next number of the form 1, 2 or 5 times a power of 10.
func ceiling(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 5} {
		if v <= step*power {
			return step * power
		}
	}
	return 10 * power
}

func TestSoak_PlotAndTableHaveEverySample(t *testing.T) {
	var samples []sample
	for i := range 9 {
		samples = append(samples, sample{at: time.Duration(i+1) * time.Minute, rate: 1000, database: float64(i << 20)})
	}
	svg := plot(samples, "test")
	if lines := strings.Count(svg, "<polyline"); lines != len(columns) {
		t.Errorf("%d lines for %d columns", lines, len(columns))
	}
	if rows := strings.Count(table(samples), "\n"); rows != len(samples)+1 {
		t.Errorf("the table has %d lines", rows)
	}
	if got := columns[5].median(samples[6:]); got != 7 {
		t.Errorf("the median of the database's last third is %v MiB", got)
	}
	for v, want := range map[float64]float64{0: 1, 0.3: 0.5, 1: 1, 11: 20, 51: 100} {
		if got := ceiling(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("ceiling of %v: %v", v, got)
		}
	}
}
