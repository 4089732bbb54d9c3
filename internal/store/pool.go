package store

import (
	"context"
	"sync"
)

// A pool lends connections, each to one user at a time. It lends the one that was returned last, whose caches are warm;
// one on a server is not even made before it is first lent.
type pool struct {
	free chan struct{} // has a value for each of idle
	mu   sync.Mutex    // guards idle
	idle []*conn
}

func newPool(conns []*conn) *pool {
	p := &pool{free: make(chan struct{}, len(conns))}
	for _, c := range conns {
		p.give(c)
	}
	return p
}

// take waits for a connection. Errors: fault.Canceled and fault.Deadline if ctx ends first, fault.Unavailable when
// closing is closed.
func (p *pool) take(ctx context.Context, closing <-chan struct{}) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, gaveUp(err)
	}
	select {
	case <-closing:
		return nil, errClosed()
	default:
	}
	select {
	case <-p.free:
	case <-ctx.Done():
		return nil, gaveUp(ctx.Err())
	case <-closing:
		return nil, errClosed()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	c := p.idle[last]
	p.idle = p.idle[:last]
	return c, nil
}

func (p *pool) give(c *conn) {
	p.mu.Lock()
	p.idle = append(p.idle, c)
	p.mu.Unlock()
	p.free <- struct{}{}
}

// drain waits until all connections were returned, and lends none any more.
func (p *pool) drain() {
	for range cap(p.free) {
		<-p.free
	}
}
