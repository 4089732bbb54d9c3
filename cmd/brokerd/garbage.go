package main

import (
	"runtime"
	"runtime/metrics"
)

// How far the heap may grow beyond what is in use before it is collected.
const (
	mostGarbage  = 400      // percent of it: while that is little, Go's 100 would collect many times a second to free a few megabytes
	roomGarbage  = 80 << 20 // bytes, once that is less
	leastGarbage = 50       // percent again, however much is in use
)

// A pacer sets how much garbage there may be, after each collection anew. A fixed percentage that suits a broker with a
// few agents wastes hundreds of megabytes on one with a thousand.
type pacer struct {
	set     func(percent int)
	percent int
	samples []metrics.Sample
}

// pace begins, and goes on for as long as the process runs.
func pace(set func(percent int)) {
	p := &pacer{set: set, samples: []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"}, // they count as the collector looks through them
	}}
	p.adjust()
	p.watch()
}

// watch adjusts the percentage after the next collection.
func (p *pacer) watch() {
	type collected struct{ _ *pacer } // nothing refers to it; with a pointer in it, it is an allocation of its own
	runtime.AddCleanup(&collected{}, func(p *pacer) {
		p.adjust()
		p.watch()
	}, p)
}

func (p *pacer) adjust() {
	metrics.Read(p.samples)
	used := uint64(1)
	for _, s := range p.samples {
		used += s.Value.Uint64()
	}
	percent := garbage(used)
	if change := percent - p.percent; -10 < change && change < 10 {
		return // setting it stops all goroutines for a moment
	}
	p.percent = percent
	p.set(percent)
}

// garbage returns how many percent of what is used there may be.
func garbage(used uint64) int {
	return int(min(mostGarbage, max(leastGarbage, roomGarbage*100/used)))
}
