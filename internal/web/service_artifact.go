package web

import (
	"cmp"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/rpc"
)

// The streams whose bytes are the body of an answer or of a request.
const (
	downloadMethod = pb.ArtifactService_DownloadArtifact_FullMethodName
	uploadMethod   = pb.ArtifactService_UploadArtifact_FullMethodName
)

// uploadChunk is how many bytes of a content one frame has.
const uploadChunk = 256 << 10

// stateEntry is the entry of an answer whose revision is an entity tag.
type stateEntry = *pb.StateEntry

// download returns the handler of GET for an artifact: its bytes, or, for a client that accepts JSON,
// its description.
func (s *Server) download(e *endpoint) http.HandlerFunc {
	described := &endpoint{name: pb.ArtifactService_GetArtifact_FullMethodName,
		method: s.methods["ArtifactService/GetArtifact"].method, parameters: e.parameters}
	return func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept"), "application/json") {
			s.unary(described, w, r)
			return
		}
		d := &download{endpoint: e, w: w, r: r, control: http.NewResponseController(w)}
		err := s.rpc.Stream(r.Context(), e.name, r.Header, d)
		switch {
		case err != nil && !d.begun:
			fail(w, r, err)
		case err != nil:
			panic(http.ErrAbortHandler) // the client must not take a part of the bytes for all of them
		}
		_ = d.control.Flush()
		_ = d.control.SetWriteDeadline(time.Time{})
	}
}

// A download is the answer with the bytes of an artifact. It implements rpc.Frames.
type download struct {
	endpoint     *endpoint
	w            http.ResponseWriter
	r            *http.Request
	control      *http.ResponseController
	read         bool
	begun        bool
	ranged       bool
	first, count int64 // of the range; a count of 0 is up to the end
}

// Read implements rpc.Frames.
func (d *download) Read(m proto.Message, hold rpc.Hold) (int, error) {
	if d.read {
		return 0, io.EOF
	}
	d.read = true
	size, err := d.endpoint.read(d.w, d.r, m, hold)
	if err != nil {
		return size, err
	}
	in := m.(*pb.DownloadArtifactRequest)
	if d.r.Header.Get("If-Range") == "" { // a server may ignore a Range whose condition it does not check
		d.first, d.count, d.ranged = parseRange(d.r.Header.Get("Range"))
	}
	if d.ranged {
		if in.GetOffset() != 0 || in.GetLength() != 0 {
			return size, fault.Field("range", "excludes offset and length: give one of them")
		}
		in.Offset, in.Length = d.first, d.count
	}
	return size, nil
}

// parseRange reads the header Range. A server may ignore a Range, and this one ignores suffixes and
// lists of ranges.
func parseRange(header string) (first, count int64, ok bool) {
	from, to, found := strings.Cut(strings.TrimPrefix(header, "bytes="), "-")
	if !found || !strings.HasPrefix(header, "bytes=") {
		return 0, 0, false
	}
	first, err := strconv.ParseInt(from, 10, 64)
	if err != nil || first < 0 {
		return 0, 0, false
	}
	if to == "" {
		return first, 0, true
	}
	last, err := strconv.ParseInt(to, 10, 64)
	if err != nil || last < first {
		return 0, 0, false
	}
	return first, min(last-first, math.MaxInt64-1) + 1, true
}

// Write implements rpc.Frames.
func (d *download) Write(m proto.Message) error {
	frame := m.(*pb.DownloadArtifactResponse)
	if v := frame.GetArtifact(); v != nil {
		return d.begin(v)
	}
	if err := d.control.SetWriteDeadline(within(writeTime)); err != nil {
		return gone(err)
	}
	_, err := d.w.Write(frame.GetChunk())
	return gone(err)
}

// begin writes the headers. The bytes are a download for a browser, whatever their type: an agent has
// written them.
func (d *download) begin(v *pb.ArtifactVersion) error {
	size := v.GetSize()
	if d.ranged && d.first >= size {
		d.w.Header().Set("Content-Range", "bytes */"+strconv.FormatInt(size, 10))
		return fault.New(fault.OutOfRange, "OFFSET_TOO_LARGE",
			"the range begins at %d, and the artifact has %d bytes", d.first, size)
	}
	kind, parameters, err := mime.ParseMediaType(v.GetMediaType())
	if err != nil {
		kind, parameters = "application/octet-stream", nil
	}
	h := d.w.Header()
	h.Set("Content-Type", mime.FormatMediaType(kind, parameters))
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(v.GetName())}))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("ETag", strconv.Quote(v.GetSha256()))
	h.Set("Accept-Ranges", "bytes")
	h.Set("Brokerd-Version", strconv.FormatInt(v.GetVersion(), 10))
	code, length := http.StatusOK, size
	if d.ranged {
		length = size - d.first
		if d.count > 0 {
			length = min(length, d.count)
		}
		code = http.StatusPartialContent
		h.Set("Content-Range", "bytes "+strconv.FormatInt(d.first, 10)+"-"+strconv.FormatInt(d.first+length-1, 10)+
			"/"+strconv.FormatInt(size, 10))
	}
	h.Set("Content-Length", strconv.FormatInt(length, 10))
	d.begun = true
	d.w.WriteHeader(code)
	return nil
}

// upload returns the handler of PUT for an artifact.
func (s *Server) upload(e *endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength < 0 {
			refuse(w, http.StatusLengthRequired, fault.New(fault.Invalid, "LENGTH_REQUIRED",
				"the request has no Content-Length"))
			return
		}
		u := &upload{endpoint: e, r: r, control: http.NewResponseController(w)}
		if err := u.control.EnableFullDuplex(); err != nil { // the answer may come before the last byte
			fail(w, r, rpc.Error(err))
			return
		}
		defer func() {
			if !u.ended.Load() {
				linger(u.control, r.Body)
			}
		}()
		err := s.rpc.Stream(r.Context(), e.name, r.Header, u)
		if !u.ended.Load() {
			w.Header().Set("Connection", "close") // what follows on it is the rest of the body
		}
		if err == nil && u.answer == nil {
			err = rpc.Error(fault.New(fault.Internal, "NO_ANSWER", "the upload has no answer"))
		}
		if err != nil {
			fail(w, r, err)
			return
		}
		b, err := encode(u.answer)
		if err != nil {
			fail(w, r, rpc.Error(err))
			return
		}
		send(w, http.StatusOK, b)
	}
}

// An upload is the request with the bytes of an artifact. It implements rpc.Frames.
type upload struct {
	endpoint *endpoint
	r        *http.Request
	control  *http.ResponseController
	begun    bool
	ended    atomic.Bool // the body has been read to its end
	answer   proto.Message
}

// Read implements rpc.Frames. The first frame has the header, the others the bytes. The broker may
// read a frame while it writes the one before. A stream counts for as many bytes as a frame has.
func (u *upload) Read(m proto.Message, _ rpc.Hold) (int, error) {
	frame := m.(*pb.UploadArtifactRequest)
	if !u.begun {
		u.begun = true
		header := &pb.ArtifactHeader{}
		frame.Frame = &pb.UploadArtifactRequest_Header{Header: header}
		if err := u.endpoint.fill(u.r, header); err != nil {
			return 0, err
		}
		header.Size = u.r.ContentLength
		header.MediaType = cmp.Or(header.GetMediaType(), mediaType(u.r))
		return 0, nil
	}
	if err := u.control.SetReadDeadline(within(bodyTime)); err != nil {
		return 0, gone(err)
	}
	chunk := make([]byte, min(uploadChunk, max(1, u.r.ContentLength)))
	n, err := io.ReadFull(u.r.Body, chunk)
	if n > 0 {
		frame.Frame = &pb.UploadArtifactRequest_Chunk{Chunk: chunk[:n]}
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		u.ended.Store(true)
		return 0, errors.Join(io.EOF, u.control.SetReadDeadline(time.Time{}))
	}
	return 0, unreadable(err)
}

// Write implements rpc.Frames.
func (u *upload) Write(m proto.Message) error {
	u.answer = m
	return nil
}

// mediaType returns the type of a body. Clients call every body a form unless its type is given.
func mediaType(r *http.Request) string {
	kind := r.Header.Get("Content-Type")
	if strings.HasPrefix(kind, "application/x-www-form-urlencoded") {
		return ""
	}
	return kind
}
