package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"brokerd/internal/fault"
)

// messageHeader is the size of what precedes each message of gRPC: a flag and a length.
const messageHeader = 5

// An incoming is a stream of gRPC's transport, which grpc.ServerTransportStreamFromContext returns. The
// server reads messages itself, so that their bytes count before gRPC opens the window for them.
type incoming interface {
	// ReadMessageHeader fills any slice, also one for a message. Read would keep a buffer for each frame of
	// HTTP/2 until the message is complete: 50 times as many bytes as it has, if a client sends it in
	// frames of one byte.
	ReadMessageHeader(header []byte) error
	SetTrailer(md metadata.MD) error
	WriteStatus(s *status.Status) error
}

// A receiver reads the messages that a client sends on one call. One goroutine at a time may use it.
type receiver struct {
	server  *Server
	from    incoming
	holding *holding
	most    int  // bytes of a message
	small   int  // bytes of a message up to which it does not count
	single  bool // the call has one request
	header  [messageHeader]byte
	watched
}

// receive reads the next message into a frame. It returns io.EOF at the end of the stream, and the
// transport's error if the stream broke; the frame has all other errors. The bytes
// count until the caller of receive releases the holding.
func (r *receiver) receive(f *frame) error {
	if err := r.from.ReadMessageHeader(r.header[:]); err != nil {
		if errors.Is(err, io.EOF) && r.single {
			err = fmt.Errorf("%w before the request", io.ErrUnexpectedEOF)
		}
		return r.broken(err)
	}
	if !r.single {
		r.begin()
	}
	size := int(binary.BigEndian.Uint32(r.header[1:]))
	switch {
	case r.header[0] != 0: // gRPC refuses a call that names a compression in its headers
		return status.Error(codes.Unimplemented, "the broker takes no compressed messages")
	case size > r.most:
		f.err = tooLarge(fmt.Sprintf("%d bytes", size), int64(r.most))
	case size > r.small:
		f.err = r.holding.take(size)
	}
	if f.err != nil {
		r.done()
		return nil
	}
	data, err := r.message(size)
	if err != nil {
		return r.broken(err)
	}
	defer r.server.requests.Put(data)
	if r.single {
		switch err := r.from.ReadMessageHeader(r.header[:1]); {
		case err == nil:
			return status.Error(codes.Internal, "the call takes one request, and the client sent more")
		case !errors.Is(err, io.EOF):
			return r.broken(err)
		}
	}
	if !r.done() {
		return r.late()
	}
	f.decode(*data, r.server.codec, &r.server.shapes, r.holding)
	return nil
}

// firstRead is how many bytes are allocated for a message before any of them has arrived.
const firstRead = 16 << 10

// message reads a message into a buffer of the server's pool. The buffer grows with what has arrived: a client that
// announces a large message and sends nothing of it takes no memory for it.
func (r *receiver) message(size int) (data *[]byte, err error) {
	if size == 0 {
		return new([]byte), nil
	}
	pool := r.server.requests
	data = pool.Get(min(size, firstRead))
	for have := 0; have < size; {
		if have > 0 {
			more := pool.Get(min(size, 2*have))
			copy(*more, *data)
			pool.Put(data)
			data = more
		}
		if err := r.from.ReadMessageHeader((*data)[have:]); err != nil {
			pool.Put(data)
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		have = len(*data)
	}
	return data, nil
}

// broken returns the error for a message that the transport cannot read to its end.
func (r *receiver) broken(err error) error {
	var of interface{ GRPCStatus() *status.Status }
	switch {
	case r.ended():
		return r.late()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return status.Error(codes.Internal, err.Error())
	case errors.Is(err, io.EOF), errors.As(err, &of):
		return err
	}
	return fmt.Errorf("%w: %w", context.Canceled, err)
}

// late returns the error of a client that does not complete a request.
func (*receiver) late() error {
	return fault.New(fault.Deadline, "REQUEST_TIMEOUT", "the client did not send the whole request within %v", requestTime)
}

// expire implements expiring.
func (r *receiver) expire() {
	err := r.late()
	_ = r.from.SetTrailer(metadata.Pairs(reasonTrailer, Reason(err))) // the status has the reason too
	_ = r.from.WriteStatus(status.Convert(Error(err)))                // fails only if the stream has ended
}

// A frame takes the place of a request while it is received. It keeps the fault of a request that cannot
// be decoded for the handler.
type frame struct {
	message any
	hold    Hold // of a call in process
	size    int  // bytes of the request
	err     error
}

// A wireReader is a request that reads its usual wire form itself. Protobuf decodes every other form of it.
type wireReader interface {
	// ReadWire reads the request, and returns how many bytes it takes beside its texts. It reports false for a form
	// that it does not know, and for one with more than a few thousand items. It does not keep data. A form of which
	// it finds out late that it does not know it costs up to as much again as protobuf's decoding.
	ReadWire(data []byte) (size int, ok bool)
}

// decode builds the message from its wire form.
func (f *frame) decode(data []byte, c codec, known *shapes, h *holding) {
	f.size = len(data)
	if r, ok := f.message.(wireReader); ok {
		if size, ok := r.ReadWire(data); ok {
			f.err = h.items(size)
			return
		}
	}
	message, ok := f.message.(proto.Message)
	if !ok {
		f.err = fmt.Errorf("a request of type %T cannot be decoded", f.message)
		return
	}
	d := message.ProtoReflect().Descriptor()
	if len(data) > unchecked {
		var items int
		items, f.err = known.of(d).check(data)
		if f.err == nil {
			f.err = h.items(items)
		}
	}
	if f.err != nil {
		return
	}
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, message); err != nil {
		f.err = undecodable(d, data, err)
	}
}

// unchecked is the size in bytes of a request up to which its items are not counted: there are few of
// them.
const unchecked = 256

// largestReused is the size in bytes of the largest buffers that the server uses again. A batch of 256 messages of 1 KiB
// has less.
const largestReused = 512 << 10

// requestBuffers is the pool of the buffers of requests. A buffer is at most twice as large as its request. A request is
// not kept when it is decoded, so that a stream needs no memory for its frames between them.
type requestBuffers struct{ mem.BufferPool }

func newRequestBuffers() requestBuffers {
	pool, err := mem.NewBinaryTieredBufferPool(8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19)
	if err != nil {
		panic(err) // the exponents are those of integers
	}
	return requestBuffers{pool}
}

// Get implements mem.BufferPool.
func (p requestBuffers) Get(size int) *[]byte {
	if size > largestReused {
		buf := make([]byte, size)
		return &buf
	}
	return p.BufferPool.Get(size)
}

// Put implements mem.BufferPool.
func (p requestBuffers) Put(buf *[]byte) {
	if cap(*buf) <= largestReused {
		p.BufferPool.Put(buf)
	}
}

// newFrameBuffers returns the pool of the buffers that gRPC reads frames into. A buffer is at most twice as
// large as its frame: frames that wait for a handler count by their own size.
func newFrameBuffers() mem.BufferPool {
	return mem.NewTieredBufferPool(256, 1<<10, 2<<10, 4<<10, 8<<10, 16<<10, 32<<10, 1<<20)
}
