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
//
// The percentage is of what the next collection finds in use. When large requests arrive at once, that is much
// more than the pacer knows of, so a limit in bytes holds until it does: 400 % of 62 MiB of requests took 390
// MiB without it.
type pacer struct {
	set     func(percent int, limit int64)
	percent int
	limit   int64
	samples []metrics.Sample
}

// pace sets both for as long as the process runs. set gets how many percent of what is used may be garbage, and
// how many bytes the Go runtime may occupy.
func pace(set func(percent int, limit int64)) {
	p := &pacer{set: set, samples: []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"}, // they count as the collector looks through them
	}}
	p.adjust()
	p.watch()
}

// watch adjusts both after the next collection.
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
	percent, limit := garbage(used)
	if change := limit - p.limit; percent == p.percent && -limit/10 < change && change < limit/10 {
		return // setting them stops all goroutines for a moment
	}
	p.percent, p.limit = percent, limit
	p.set(percent, limit)
}

// garbage returns how many percent of what is used there may be, in steps of ten, and how many bytes the runtime may
// occupy: as much garbage again for its own use, and for what arrives before the next collection.
func garbage(used uint64) (percent int, limit int64) {
	percent = int(min(mostGarbage, max(leastGarbage, roomGarbage*100/used)))
	percent -= percent % 10
	more := int64(used) / 100 * int64(percent)
	return percent, int64(used) + more + max(more, roomGarbage)
}
