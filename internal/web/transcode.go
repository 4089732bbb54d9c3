package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"brokerd/internal/fault"
	"brokerd/internal/jsonform"
	"brokerd/internal/rpc"
)

// api is the package of the API's services.
const api protoreflect.FullName = "brokerd.v1"

// The parameters of a path that are headers of the call, not fields of its request.
var callParameters = map[string]string{"caller": "Brokerd-Agent", "session": "Brokerd-Session"}

// The headers of a request that are fields of its message.
const (
	keyHeader    = "Idempotency-Key" // request_id
	matchHeader  = "If-Match"        // compare_revision
	resumeHeader = "Last-Event-ID"   // after_revision, of a stream

	keyField    = "request_id"
	matchField  = "compare_revision"
	resumeField = "after_revision"
)

// An endpoint is one RPC, as a route or /v1/call reaches it.
type endpoint struct {
	name       string // /brokerd.v1.AgentService/GetAgent
	method     protoreflect.MethodDescriptor
	parameters []string // of the path
	preset     url.Values
	first      bool        // the answer is the first frame of the stream
	large      *sync.Mutex // held while a large body is decoded, of whatever endpoint
}

// methods returns the endpoints of all RPCs, by service and method, which share a mutex for large bodies.
func methods(large *sync.Mutex) map[string]*endpoint {
	all := map[string]*endpoint{}
	protoregistry.GlobalFiles.RangeFilesByPackage(api, func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				name := string(service.Name()) + "/" + string(m.Name())
				all[name] = &endpoint{name: "/" + string(api) + "." + name, method: m, large: large}
			}
		}
		return true
	})
	return all
}

var parameter = regexp.MustCompile(`{(\w+)(?:\.\.\.)?}`)

// at returns the endpoint as a route reaches it.
func (e *endpoint) at(r route) *endpoint {
	routed := endpoint{name: e.name, method: e.method, large: e.large}
	for _, found := range parameter.FindAllStringSubmatch(r.pattern, -1) {
		routed.parameters = append(routed.parameters, found[1])
	}
	var err error
	if routed.preset, err = url.ParseQuery(r.preset); err != nil {
		panic(fmt.Sprintf("route %s: %v", r.pattern, err))
	}
	routed.first = e.method.IsStreamingServer() && e.name != downloadMethod &&
		!strings.HasSuffix(r.pattern, "follow") && !strings.HasSuffix(r.pattern, "watch")
	return &routed
}

// handler returns the handler of an endpoint.
func (s *Server) handler(e *endpoint) http.HandlerFunc {
	switch {
	case e.name == downloadMethod && e.parameters != nil:
		return s.download(e)
	case e.name == uploadMethod && e.parameters != nil:
		return s.upload(e)
	case e.first:
		return func(w http.ResponseWriter, r *http.Request) { s.firstFrame(e, w, r) }
	case e.method.IsStreamingClient() || e.method.IsStreamingServer():
		return func(w http.ResponseWriter, r *http.Request) { s.stream(e, w, r) }
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if rpc.Public(e.name) {
			r.Body = http.MaxBytesReader(w, r.Body, publicBody)
		}
		s.unary(e, w, r)
	}
}

// unary serves a call with one answer.
func (s *Server) unary(e *endpoint, w http.ResponseWriter, r *http.Request) {
	header, err := e.header(r)
	if err != nil {
		fail(w, r, rpc.Error(err))
		return
	}
	answer, err := s.rpc.Call(r.Context(), e.name, header, func(m proto.Message, hold rpc.Hold) (int, error) {
		return e.read(w, r, m, hold)
	})
	if err != nil {
		fail(w, r, err)
		return
	}
	b, err := encode(answer)
	if err != nil {
		fail(w, r, rpc.Error(err))
		return
	}
	if tag := entryRevision(answer); tag > 0 {
		w.Header().Set("ETag", strconv.Quote(strconv.FormatInt(tag, 10)))
	}
	send(w, http.StatusOK, b)
}

// header returns the headers that identify the caller: those of the request, and parameters of the
// path. The two must not contradict each other.
func (e *endpoint) header(r *http.Request) (http.Header, error) {
	header := r.Header
	for _, name := range e.parameters {
		key, value := callParameters[name], r.PathValue(name)
		if key == "" {
			continue
		}
		if given := r.Header.Values(key); len(given) > 0 && (len(given) > 1 || given[0] != value) {
			return nil, fault.Field(strings.ToLower(key), "is %q, and the path names %q", given[0], value)
		}
		header = header.Clone()
		header.Set(key, value)
	}
	return header, nil
}

// read fills in the request of a call from the body, the path, the query and the headers. It returns
// the size of the body in bytes.
func (e *endpoint) read(w http.ResponseWriter, r *http.Request, m proto.Message, hold rpc.Hold) (int, error) {
	data, err := body(w, r, hold)
	if err != nil {
		return 0, err
	}
	if len(data) > largeBody {
		e.large.Lock()
		defer e.large.Unlock()
	}
	if err := jsonform.Decode(data, m); err != nil {
		return 0, err
	}
	return len(data), e.fill(r, m)
}

// fill sets the fields that are not in the body.
func (e *endpoint) fill(r *http.Request, m proto.Message) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return fault.New(fault.Invalid, "MALFORMED_REQUEST", "the query of the URL is malformed: %v", err)
	}
	for _, name := range e.parameters {
		if callParameters[name] != "" {
			continue
		}
		if err := jsonform.Set(m, name, []string{r.PathValue(name)}); err != nil {
			return err
		}
	}
	for _, given := range []url.Values{e.preset, query} {
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if err := jsonform.Set(m, name, given[name]); err != nil {
				return err
			}
		}
	}
	return e.fillFromHeaders(r, m)
}

// fillFromHeaders sets the fields that HTTP has headers for.
func (e *endpoint) fillFromHeaders(r *http.Request, m proto.Message) error {
	for _, from := range []struct {
		header string
		field  protoreflect.Name
	}{{keyHeader, keyField}, {matchHeader, matchField}, {resumeHeader, resumeField}} {
		values := r.Header.Values(from.header)
		field := m.ProtoReflect().Descriptor().Fields().ByName(from.field)
		switch {
		case len(values) == 0:
			continue
		case field == nil && from.header == resumeHeader && e.method.IsStreamingServer():
			continue // the first frame of such a stream has everything
		case field == nil:
			return fault.Field(strings.ToLower(from.header), "has no meaning for %s", e.method.Name())
		case from.header == resumeHeader: // a client that reconnects repeats its first URL
			m.ProtoReflect().Clear(field)
		case from.header == matchHeader && len(values) == 1:
			values = []string{strings.Trim(values[0], `"`)}
		}
		if err := jsonform.Set(m, string(from.field), values); err != nil {
			return err
		}
	}
	return nil
}

// smallBody is the size in bytes of a body up to which it does not count as a request under way.
const smallBody = 4 << 10

// largeBody is the size in bytes of a body from which on the broker decodes one at a time. One of 5 MB takes a
// processor for 40 ms: beside 13 of them at once, the calls of other clients took up to 40 ms instead of 12.
const largeBody = 256 << 10

// bodyPart is how many bytes of a body of unknown length count at a time.
const bodyPart = 64 << 10

// body reads the body of a request, whose bytes count before they are read. ServeHTTP has set a deadline,
// which ends with the body.
func body(w http.ResponseWriter, r *http.Request, hold rpc.Hold) ([]byte, error) {
	length := r.ContentLength
	switch {
	case length == 0:
		return nil, nil
	case length > rpc.MaxRequest:
		return nil, rpc.TooLarge(rpc.MaxRequest)
	case length > smallBody:
		if err := hold(int(length)); err != nil {
			return nil, err
		}
	}
	from := http.MaxBytesReader(w, r.Body, rpc.MaxRequest)
	var data bytes.Buffer
	if length > 0 {
		data.Grow(int(length) + bytes.MinRead) // so that the end of the body needs no larger buffer
	} else {
		from = &countedBody{ReadCloser: from, hold: hold, left: smallBody}
	}
	if _, err := data.ReadFrom(from); err != nil {
		return nil, unreadable(err)
	}
	return data.Bytes(), gone(http.NewResponseController(w).SetReadDeadline(time.Time{}))
}

// A countedBody is a body of unknown length, which counts as it is read.
type countedBody struct {
	io.ReadCloser
	hold rpc.Hold
	left int // bytes that count already
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		if err := b.hold(bodyPart); err != nil {
			return 0, err
		}
		b.left = bodyPart
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// gone returns the error of a client that has closed the connection, or that does not read. Its call
// counts as one that the caller has cancelled.
func gone(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", context.Canceled, err)
}

// unreadable returns the fault of a body that cannot be read.
func unreadable(err error) error {
	var timeout interface{ Timeout() bool }
	var large *http.MaxBytesError
	switch {
	case errors.As(err, new(*fault.Error)): // the body was not read
		return err
	case errors.As(err, &large):
		return rpc.TooLarge(large.Limit)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fault.New(fault.Deadline, "BODY_TIMEOUT", "the client did not send the body within %v", bodyTime)
	}
	e := fault.New(fault.Invalid, "MALFORMED_REQUEST", "the body of the request ends early")
	e.Cause = err
	return e
}

// within returns the deadline of a connection: a time of the machine, whatever the broker's clock.
func within(d time.Duration) time.Time {
	return time.Now().Add(d) //nolint:forbidigo // the kernel compares it with its own clock
}

// encode returns the JSON form of an answer.
func encode(m proto.Message) (*bytes.Buffer, error) {
	var b bytes.Buffer
	return &b, jsonform.Append(&b, m)
}

// linger reads the rest of a body after an answer that came before its end. A connection that closes
// with unread bytes may take the answer from the client. It also ends a read by a handler that
// outlives its call.
func linger(control *http.ResponseController, body io.Reader) {
	_ = control.SetReadDeadline(within(lingerTime))
	_, _ = io.CopyN(io.Discard, body, lingerSize)
}

// send writes an answer of one JSON object.
func send(w http.ResponseWriter, status int, b *bytes.Buffer) {
	b.WriteByte('\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	timed(w, func() {
		w.WriteHeader(status)
		_, _ = w.Write(b.Bytes())
	})
}

// timed limits the time in which the client reads an answer. A client that has closed the connection
// gets no answer.
func timed(w http.ResponseWriter, write func()) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(within(writeTime))
	write()
	_ = control.Flush()
	_ = control.SetWriteDeadline(time.Time{})
}

// entryRevision returns the revision of the entry of the state in an answer, which is its entity tag;
// 0 if the answer has none.
func entryRevision(answer proto.Message) int64 {
	if entry, ok := answer.(interface{ GetEntry() stateEntry }); ok && entry.GetEntry() != nil {
		return entry.GetEntry().GetRevision()
	}
	return 0
}
