package rpc

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// smallFrame is the size in bytes up to which a frame of a stream is queued without a wait for the
// client. gRPC queues frames of a stream until their sizes add up to 64 KiB.
const smallFrame = 32 << 10

// An answer takes the place of a stream's frame while gRPC encodes it.
type answer struct {
	message any
	written chan struct{} // closed when gRPC has written the frame, or dropped it; nil for a small frame
}

// An encoded message has its encoded form already. A feature that sends the same frame on many streams
// encodes it once.
type encoded interface{ Encoded() []byte }

// A wireWriter is an answer that appends its wire form to a buffer itself.
type wireWriter interface {
	WireSize() int // of the wire form in bytes, at most
	AppendWire(b []byte) []byte
	Message() proto.Message // the same answer, for a call in process
}

// Marshal implements encoding.CodecV2. It drops its reference to an answer's message, so that a
// stream whose client does not read keeps the encoded form alone.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	a, ok := v.(*answer)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	if e, ok := a.message.(encoded); ok {
		a.message = nil
		return a.share(e.Encoded()), nil
	}
	if w, ok := a.message.(wireWriter); ok {
		a.message = nil
		return c.write(a, w), nil
	}
	data, err := c.CodecV2.Marshal(a.message)
	a.message = nil
	if err != nil || data.Len() <= smallFrame {
		return data, err
	}
	// gRPC's pool has no buffers between 32 KiB and 1 MiB. The copy is as large as the frame.
	defer data.Free()
	pool := c.largeFrame(a)
	buf := pool.Get(data.Len())
	data.CopyTo(*buf)
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}, nil
}

// largeFrame returns the pool of an answer that is a large frame.
func (c codec) largeFrame(a *answer) mem.BufferPool {
	a.written = make(chan struct{})
	return &largeFrames{c.large, a.written}
}

// write appends an answer to a buffer of the pool for its size. gRPC does not pool the smallest buffers either.
func (c codec) write(a *answer, w wireWriter) mem.BufferSlice {
	size := w.WireSize()
	if mem.IsBelowBufferPoolingThreshold(size) {
		return mem.BufferSlice{mem.SliceBuffer(w.AppendWire(make([]byte, 0, size)))}
	}
	pool := mem.DefaultBufferPool()
	if size > smallFrame {
		pool = c.largeFrame(a)
	}
	buf := pool.Get(size)
	*buf = w.AppendWire((*buf)[:0])
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}
}

// share sends bytes that other streams send as well, without a copy.
func (a *answer) share(data []byte) mem.BufferSlice {
	if len(data) <= smallFrame {
		return mem.BufferSlice{mem.SliceBuffer(data)}
	}
	a.written = make(chan struct{})
	return mem.BufferSlice{mem.NewBuffer(&data, &largeFrames{mem.NopBufferPool{}, a.written})}
}

// largeFrames is the pool of one large frame: gRPC puts the frame's buffer back as soon as it has
// written the frame.
type largeFrames struct {
	mem.BufferPool
	written chan struct{}
}

// Put implements mem.BufferPool.
func (p *largeFrames) Put(buf *[]byte) {
	close(p.written)
	p.BufferPool.Put(buf)
}

// newLargeFrames returns a pool of buffers that are at most twice as large as a frame, and little
// larger than one with the largest payload of a message or the largest value of a key.
func newLargeFrames() mem.BufferPool {
	return mem.NewTieredBufferPool(64<<10, 128<<10, 256<<10+4<<10, 512<<10, 1<<20+4<<10)
}
