package web

import (
	"bytes"
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"brokerd/internal/fault"
	"brokerd/internal/rpc"
)

// Limits of one connection. A body and an answer have rpc.MaxRequest bytes and those of gRPC.
const (
	maxHeader  = 16 << 10         // bytes of the request line and the headers
	publicBody = 4 << 10          // bytes of a body that needs no credential
	headerTime = 10 * time.Second // for a client to send them
	bodyTime   = 30 * time.Second // to send a body, or a piece of an artifact
	writeTime  = 30 * time.Second // to read an answer, or a frame of a stream
	idleTime   = 2 * time.Minute  // between two requests
	lingerTime = time.Second      // to send the rest of a body after its answer
	lingerSize = 256 << 10        // bytes of that rest

	// pipelinePause is the wait before a request that was sent without waiting for the answer to the one
	// before it. Browsers, curl and common libraries wait; a flood does not.
	pipelinePause = 5 * time.Millisecond
)

// Options say what a server needs.
type Options struct {
	RPC     *rpc.Server // whose services are registered
	Version string      // of the program
	Clock   clockwork.Clock
	Log     *zap.Logger
}

// A Server answers HTTP requests. Its methods may be called concurrently.
type Server struct {
	rpc     *rpc.Server
	clock   clockwork.Clock
	http    *http.Server
	mux     *http.ServeMux
	methods map[string]*endpoint // of all RPCs, by service and method
	origins *http.CrossOriginProtection
	shared  sharedFrames
	large   *sync.Mutex // held while a large body is decoded

	version   string
	described func() ([]byte, error) // the OpenAPI document, made once
}

// New returns a server. The API's descriptors and the table of routes must agree; New panics if they
// do not.
func New(o Options) *Server {
	s := &Server{
		rpc: o.RPC, clock: o.Clock, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(), version: o.Version,
		large: new(sync.Mutex),
	}
	s.methods = methods(s.large)
	s.described = sync.OnceValues(s.describe)
	for _, r := range routes {
		s.mux.Handle(r.pattern, s.handler(s.methods[r.rpc].at(r)))
	}
	s.mux.HandleFunc("POST /v1/call/{service}/{method}", s.call)
	s.mux.HandleFunc("GET /v1/openapi.json", s.openAPI)
	s.handleMCP(o.Log)
	s.handlePage()
	version1 := new(http.Protocols)
	version1.SetHTTP1(true)
	s.http = &http.Server{
		Handler:           s,
		ConnContext:       rpc.ConnContext,
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		Protocols:         version1,
		ErrorLog:          log.New(errorLog{o.Log}, "", 0),
	}
	return s
}

// An errorLog takes the lines that http.Server logs: the panics of handlers, and complaints about
// clients.
type errorLog struct{ log *zap.Logger }

// Write implements io.Writer.
func (l errorLog) Write(line []byte) (int, error) {
	level := zapcore.DebugLevel
	if bytes.HasPrefix(line, []byte("http: panic")) {
		level = zapcore.ErrorLevel
	}
	l.log.Log(level, string(bytes.TrimSpace(line)))
	return len(line), nil
}

// Serve answers the requests that come through the listener until Stop, which is no error.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Stop accepts no more requests and permits those under way to finish; when ctx ends it closes their
// connections. Stopping twice is fine.
func (s *Server) Stop(ctx context.Context) error {
	if err := s.http.Shutdown(ctx); err == nil {
		return nil
	}
	return s.http.Close()
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rpc.Pipelined(r.Context()) {
		clockwork.NewRealClock().Sleep(pipelinePause) // it protects the processor, whatever the broker's clock says
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if r.ContentLength != 0 { // also for a body that no handler reads: http.Server discards it
		_ = http.NewResponseController(w).SetReadDeadline(within(bodyTime)) // a closed connection has no body
	}
	if len(r.TransferEncoding) > 0 && rpc.LengthGiven(r.Context()) {
		// A proxy may take the length for the end of the request (RFC 9112, section 6.1).
		w.Header().Set("Connection", "close")
	}
	if rpc.PlainTCP(r.Context()) && !ownHost(r.Host) {
		refuse(w, http.StatusMisdirectedRequest, fault.New(fault.Invalid, "FOREIGN_HOST",
			"this address does not serve the host %q: use localhost or the IP address", r.Host))
		return
	}
	if s.origins.Check(r) != nil || foreignRead(r) {
		refuse(w, http.StatusForbidden, fault.New(fault.Denied, "CROSS_ORIGIN",
			"a page of another origin may not make this request"))
		return
	}
	if !s.routed(r) {
		s.notFound(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// redirect is the type of the handlers with which http.ServeMux redirects.
var redirect = reflect.TypeOf(http.RedirectHandler("", 0))

// routed reports whether a request has a route. http.ServeMux redirects a path with empty or dot
// segments, or one without its last slash, to another path. A client that follows would change another
// key than it names.
func (s *Server) routed(r *http.Request) bool {
	h, pattern := s.mux.Handler(r)
	return pattern != "" && reflect.TypeOf(h) != redirect
}

// ownHost reports whether a Host header names this machine. A page on a foreign name whose address
// became a loopback address must not reach the broker (DNS rebinding). Without TLS, the broker only
// listens on loopback addresses.
func ownHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "localhost" {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

// foreignRead reports whether a page of another origin makes a call with a safe method, which the origin
// check permits. An image or a link cannot have a token, but it has the client certificate of the browser,
// and a GET of /v1/inbox/follow takes messages.
func foreignRead(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return strings.HasPrefix(r.URL.Path, "/v1/") && (site == "cross-site" || site == "same-site")
}

// notFound answers a request that has no route.
func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = method
		if s.routed(other) {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		refuse(w, http.StatusMethodNotAllowed, fault.New(fault.Invalid, "METHOD_NOT_ALLOWED",
			"%s is not possible here; possible: %s", r.Method, strings.Join(allowed, ", ")))
		return
	}
	refuse(w, http.StatusNotFound, fault.New(fault.NotFound, "ROUTE_NOT_FOUND",
		"there is nothing at this path; /v1/openapi.json lists the paths; in a name, write // and /../ with %%2F"))
}

// call serves /v1/call.
func (s *Server) call(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.PathValue("service"), "brokerd.v1.") + "/" + r.PathValue("method")
	e := s.methods[name]
	if e == nil {
		refuse(w, http.StatusNotFound, fault.New(fault.NotFound, "METHOD_NOT_FOUND", "there is no method %s", name))
		return
	}
	s.handler(e)(w, r)
}
