package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// shown is how many of the slowest packages and tests the report lists.
const shown = 10

// longestLine is the most bytes of an event; go test splits longer output.
const longestLine = 64 << 20

// An event is a line of `go test -json`: see `go doc test2json` and `go help buildjson`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// An entry is a package or test with its time.
type entry struct {
	name    string
	seconds float64
}

// A report prints the events of several go test commands as they come. Its methods may be called concurrently.
type report struct {
	began time.Time

	mu       sync.Mutex // guards what follows
	out      io.Writer
	last     time.Time            // of the newest line of out
	running  map[string]*progress // by package
	builds   map[string][]string  // output by import path
	packages []entry
	tests    []entry
	failed   []string
	passed   int // with the failed ones; tests and subtests
	skipped  []string
	bad      int // tests that failed
}

// progress is a package whose tests run.
type progress struct {
	began  time.Time
	order  []string            // tests that have begun, in that order
	output map[string][]string // by test that has not passed; "" is the package itself
}

func newReport(out io.Writer) *report {
	now := time.Now()
	return &report{began: now, last: now, out: out, running: map[string]*progress{}, builds: map[string][]string{}}
}

// read takes the events of one command. A line that is no event is printed as it is.
func (r *report) read(events io.Reader) error {
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Action == "" {
			r.print(lines.Text() + "\n")
			continue
		}
		r.take(&e)
	}
	_, err := io.Copy(io.Discard, events) // so that go test can end
	if lines.Err() != nil {
		return lines.Err()
	}
	return err
}

func (r *report) print(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(text)
}

// write prints; r.mu is held.
func (r *report) write(text string) {
	r.last = time.Now()
	_, _ = io.WriteString(r.out, text) // there is no other place to report a broken output
}

func (r *report) take(e *event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Action {
	case "build-output":
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
		return
	case "build-fail":
		r.write(strings.Join(r.builds[e.ImportPath], ""))
		return
	}
	p := r.running[e.Package]
	if p == nil {
		p = &progress{began: time.Now(), output: map[string][]string{}}
		r.running[e.Package] = p
	}
	switch e.Action {
	case "run":
		p.order = append(p.order, e.Test)
	case "output":
		p.output[e.Test] = append(p.output[e.Test], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e, p)
		} else {
			r.endTest(e, p)
		}
	}
}

func (r *report) endTest(e *event, p *progress) {
	name := e.Package + " " + e.Test
	if !strings.Contains(e.Test, "/") {
		r.tests = append(r.tests, entry{name, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		r.passed++
		delete(p.output, e.Test)
	case "fail":
		r.passed++
		r.bad++
		r.failed = append(r.failed, name)
	case "skip":
		r.skipped = append(r.skipped, name+reason(p.output[e.Test]))
		delete(p.output, e.Test)
	}
}

// reason returns what a skipped test wrote.
func reason(output []string) string {
	var text strings.Builder
	for _, line := range output {
		if !frame(line) {
			text.WriteString(" " + strings.TrimSpace(line))
		}
	}
	if text.Len() == 0 {
		return ""
	}
	return ":" + text.String()
}

// frame reports whether a line is one with which go test frames the output of a test.
func frame(line string) bool {
	line = strings.TrimSpace(line)
	return strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- SKIP")
}

func (r *report) endPackage(e *event, p *progress) {
	delete(r.running, e.Package)
	own := p.output[""]
	if e.Action != "fail" {
		for _, line := range own {
			if e.Action == "pass" && strings.HasPrefix(line, "ok ") {
				r.write(line)
				r.packages = append(r.packages, entry{e.Package, e.Elapsed})
			}
		}
		return
	}
	r.packages = append(r.packages, entry{e.Package, e.Elapsed})
	if !slices.ContainsFunc(r.failed, func(name string) bool { return strings.HasPrefix(name, e.Package+" ") }) {
		r.failed = append(r.failed, e.Package)
	}
	var text strings.Builder
	for _, test := range p.order {
		for _, line := range p.output[test] {
			if !frame(line) {
				text.WriteString(line)
			}
		}
	}
	for _, line := range own {
		text.WriteString(line)
	}
	r.write(text.String())
}

// progress prints after a time without a line which packages run. The function that it returns ends that.
func (r *report) progress(every time.Duration) (stop func()) {
	ended := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		tick := time.NewTicker(every / 10)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				r.tell(every)
			}
		}
	})
	return func() {
		close(ended)
		telling.Wait()
	}
}

func (r *report) tell(every time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last) < every {
		return
	}
	now := "go builds"
	if len(r.running) > 0 {
		now = "running: " + strings.Join(slices.Sorted(maps.Keys(r.running)), ", ")
	}
	r.write(fmt.Sprintf("[%s] %d packages done; %s\n", time.Since(r.began).Round(time.Second), len(r.packages), now))
}

// end prints what is known once all commands have ended. Its last line has the form of gotestsum's.
func (r *report) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var text strings.Builder
	section := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&text, "\n=== %s\n%s\n", title, strings.Join(lines, "\n"))
		}
	}
	section("Slowest packages", slowest(r.packages))
	section("Slowest tests", slowest(r.tests))
	section("Skipped tests", r.skipped)
	section("Failed tests", r.failed)
	fmt.Fprintf(&text, "\nDONE %d tests", r.passed+len(r.skipped))
	if len(r.skipped) > 0 {
		fmt.Fprintf(&text, ", %d skipped", len(r.skipped))
	}
	if r.bad > 0 {
		fmt.Fprintf(&text, ", %d failed", r.bad)
	}
	fmt.Fprintf(&text, " in %.3fs\n", time.Since(r.began).Seconds())
	r.write(text.String())
}

// slowest returns lines with the slowest entries.
func slowest(all []entry) []string {
	slices.SortStableFunc(all, func(a, b entry) int {
		switch {
		case a.seconds > b.seconds:
			return -1
		case a.seconds < b.seconds:
			return 1
		}
		return 0
	})
	var lines []string
	for _, e := range all[:min(shown, len(all))] {
		lines = append(lines, fmt.Sprintf("%8.2fs  %s", e.seconds, e.name))
	}
	return lines
}
