package locks_test

import (
	"fmt"
	"testing"

	pb "brokerd/gen/brokerd/v1"
)

// Requests for many paths are compared by the order of the paths; here with one path each, of every kind.
func TestQueue_ManyPathsConflictAsFewDo(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.agent("a"), w.agent("b"), w.agent("c")
	fence := a.lock("held")
	many := []string{"held"}
	for i := range 100 {
		many = append(many, fmt.Sprintf("f/%d.go", i), fmt.Sprintf("d%d/", i))
	}
	many = append(many, "g/*.go", "f/[0].go", "f/0.go/x")
	ticket := b.keep(many...)
	var others []string
	for i := range 100 {
		others = append(others, fmt.Sprintf("other/%d", i))
	}
	for path, free := range map[string]bool{
		"f/7.go": false, "f/": false, "f/*.go": false, "**/7.go": false, "d7/": false, "d7/x/y": false, "d7/x/": false, "g/a.go": false, "g/": false,
		"*/a.go": false, "f/0.go/x": false, "f/7.go/": true, "f/100.go": true, "g/a.md": true, "d100/x": true, "d7": true, "g/x/": true, "g*/": false, "**/*.md": false,
	} {
		got := c.acquire(&pb.AcquireLocksRequest{Paths: append([]string{path}, others...)})
		if (got.Outcome == granted) != free {
			t.Errorf("%s: %v", path, got)
		}
		if got.Outcome == granted {
			c.release(got.Fence)
		} else {
			want(t, path, got.Obstacles[0].Revision, ticket)
		}
	}
	a.release(fence)
}
