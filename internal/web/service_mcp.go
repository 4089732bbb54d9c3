package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/guard"
	"brokerd/internal/jsonform"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
	"brokerd/internal/rpc"
)

const (
	mcpLease  = time.Hour // of an agent that /mcp registers: each of its calls renews it
	mcpTokens = 100_000   // JSON tokens of a request
	// mcpHarness is the session of a client to which mail is offered. The protocol has no sessions, and a
	// credential or a header names the agent of a request.
	mcpHarness = "mcp"
	// listenMethod opens a stream for news of the server. The tools never change, so there is none.
	listenMethod = "subscriptions/listen"
)

// handleMCP adds the route of the Model Context Protocol. A request is one POST, without a session on the server.
func (s *Server) handleMCP(log *zap.Logger) {
	server := mcp.New(mcp.Options{
		Agent: func(ctx context.Context) mcp.Agent { return ctx.Value(mcpAgentKey{}).(*mcpAgent) }, Version: s.version,
		Clock: s.clock, Mark: prompt.NewMark, Harness: mcpHarness, Shared: true,
		Defect: func(p any) { log.Error("a call of a tool panicked", zap.Any("panic", p), zap.StackSkip("stack", 2)) },
	})
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true,
		MaxRequestBodyBytes:        -1,   // body has read it, within its limits
		DisableLocalhostProtection: true, // ServeHTTP has checked the header Host
	})
	s.mux.HandleFunc("POST /mcp", func(w http.ResponseWriter, r *http.Request) {
		begun := false
		err := s.rpc.Do(r.Context(), rpc.MCP, r.Header, func(ctx context.Context, hold rpc.Hold) error {
			data, err := body(w, r, hold)
			if err != nil {
				return err
			}
			begun = true
			if wrong := s.checkMCP(data); wrong != nil {
				refuseMCP(w, wrong)
				return nil
			}
			agent := &mcpAgent{server: s, log: log, ctx: ctx, header: r.Header}
			r := r.WithContext(context.WithValue(ctx, mcpAgentKey{}, agent))
			r.Body = io.NopCloser(bytes.NewReader(data))
			handler.ServeHTTP(timedWriter{w}, r)
			return nil
		})
		if err != nil && !begun {
			fail(w, r, err)
		}
	})
}

// checkMCP returns what is wrong with a message; nil if the SDK may read it. A text that nests deeply would take the
// SDK's stack, and a list of messages as many goroutines.
func (s *Server) checkMCP(data []byte) *jsonrpc.Error {
	if len(data) > largeBody {
		s.large.Lock()
		defer s.large.Unlock()
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if d.PeekKind() == '[' {
		return &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: "send one message in each request: a batch is not accepted",
		}
	}
	for n := 0; ; n++ {
		_, err := d.ReadToken()
		switch {
		case errors.Is(err, io.EOF):
			return checkMethod(data)
		case err != nil:
			return &jsonrpc.Error{
				Code: jsonrpc.CodeParseError, Message: "the body must be one JSON-RPC message: " + err.Error(),
			}
		case n == mcpTokens:
			return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "the message has more than 100000 JSON tokens"}
		}
	}
}

// checkMethod refuses a method that would hold its stream.
func checkMethod(data []byte) *jsonrpc.Error {
	var message struct { // names count with regard to case, as the SDK reads them
		Method string         `json:"method"`
		Result jsontext.Value `json:"result"`
		Error  jsontext.Value `json:"error"`
	}
	err := jsonv2.Unmarshal(data, &message, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if err == nil && message.Method == "" && message.Result == nil && message.Error == nil {
		err = errors.New("it has no method")
	}
	if err != nil {
		return &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: "the body must be one JSON-RPC message: " + err.Error(),
		}
	}
	if message.Method == listenMethod {
		return &jsonrpc.Error{
			Code: jsonrpc.CodeMethodNotFound, Message: "there is nothing to listen for: the tools never change",
		}
	}
	return nil
}

// refuseMCP answers a message that is wrong, with the id null.
func refuseMCP(w http.ResponseWriter, wrong *jsonrpc.Error) {
	var b bytes.Buffer
	_ = json.NewEncoder(&b).Encode(struct { // texts always encode
		Version string         `json:"jsonrpc"`
		ID      any            `json:"id"`
		Error   *jsonrpc.Error `json:"error"`
	}{"2.0", nil, wrong})
	b.Truncate(b.Len() - 1) // the newline that Encode adds
	send(w, http.StatusBadRequest, &b)
}

// A timedWriter limits the time in which the client reads each piece of an answer.
type timedWriter struct{ http.ResponseWriter }

// Write implements io.Writer.
func (w timedWriter) Write(p []byte) (int, error) {
	control := http.NewResponseController(w.ResponseWriter)
	_ = control.SetWriteDeadline(within(writeTime)) // the write itself fails on a closed connection
	n, err := w.ResponseWriter.Write(p)
	if err == nil {
		err = control.Flush()
	}
	_ = control.SetWriteDeadline(time.Time{})
	return n, err
}

// Unwrap returns the writer for an http.ResponseController.
func (w timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// mcpAgentKey is the key of a context's agent.
type mcpAgentKey struct{}

// An mcpAgent makes the calls of the tools in process, with the headers of the request. It implements mcp.Agent.
type mcpAgent struct {
	server *Server
	log    *zap.Logger
	ctx    context.Context // of the request
	header http.Header

	mu   sync.Mutex // guards news
	news strings.Builder
}

// Join implements mcp.Agent. The credential or a header names the agent.
func (a *mcpAgent) Join(ctx context.Context, _ string) (string, error) {
	agents := pb.NewAgentServiceClient(a)
	known, err := agents.GetAgent(ctx, &pb.GetAgentRequest{})
	if err == nil {
		return known.GetAgent().GetName(), nil
	}
	switch reason := reasonOf(err); {
	case status.Code(err) == codes.InvalidArgument:
		return "", errors.New("the request names no agent: it needs the credential of an agent, or the header Brokerd-Agent")
	case reason != "AGENT_NOT_REGISTERED" && reason != "AGENT_NOT_FOUND":
		return "", errors.New(status.Convert(err).Message())
	}
	answer, err := agents.RegisterAgent(ctx, &pb.RegisterAgentRequest{Lease: durationpb.New(mcpLease)})
	if err != nil {
		return "", errors.New(status.Convert(err).Message())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	w := prompt.NewWriter(&a.news, prompt.NewMark, "losses")
	w.Say("You are the agent " + answer.GetAgent().GetName() + ".")
	prompt.Losses(w, answer)
	return answer.GetAgent().GetName(), w.Flush()
}

// reasonOf returns the reason of an error of the broker.
func reasonOf(err error) string {
	answer, _ := status.FromError(err)
	return jsonform.NewProblem(answer).Reason
}

// News implements mcp.Agent.
func (a *mcpAgent) News() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.news.String()
}

// Gone implements mcp.Agent.
func (a *mcpAgent) Gone() bool { return a.ctx.Err() != nil }

// Left implements mcp.Agent. The next call registers the agent again.
func (a *mcpAgent) Left(bool) {}

// during returns a context of the request that also ends with ctx.
func (a *mcpAgent) during(ctx context.Context) (context.Context, context.CancelFunc) {
	request := a.ctx
	if mcp.Afterwards(ctx) {
		request = context.WithoutCancel(request)
	}
	both, cancel := context.WithCancel(request)
	stop := context.AfterFunc(ctx, cancel)
	return both, func() { stop(); cancel() }
}

// headers returns the headers of a call.
func (a *mcpAgent) headers(ctx context.Context) http.Header {
	span := mcp.TraceParent(ctx)
	if span == "" {
		return a.header
	}
	header := a.header.Clone()
	header.Set("traceparent", span)
	return header
}

// fill fills in a request, whose bytes count.
func fill(m proto.Message, from any, hold rpc.Hold) (int, error) {
	request := from.(proto.Message) // of a generated client
	size := proto.Size(request)
	if size > smallBody {
		if err := hold(size); err != nil {
			return 0, err
		}
	}
	proto.Merge(m, request)
	return size, nil
}

// Invoke implements grpc.ClientConnInterface.
func (a *mcpAgent) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	both, end := a.during(ctx)
	defer end()
	answer, err := a.server.rpc.Call(both, method, a.headers(ctx), func(m proto.Message, hold rpc.Hold) (int, error) {
		return fill(m, args, hold)
	})
	if err != nil {
		return err
	}
	return received(reply, answer)
}

// received reads an answer as a client does. An answer may have parts that are encoded already.
func received(to any, answer proto.Message) error {
	data, err := proto.Marshal(answer)
	if err == nil {
		err = proto.Unmarshal(data, to.(proto.Message)) // of a generated client
	}
	return err
}

// NewStream implements grpc.ClientConnInterface for streams of answers.
func (a *mcpAgent) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, _ ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if desc.ClientStreams {
		return nil, rpc.Error(fault.New(fault.Internal, "NO_STREAM", "the tools make no call with a stream of requests"))
	}
	both, end := a.during(ctx)
	return &answers{agent: a, ctx: both, end: end, header: a.headers(ctx), method: method, frames: make(chan []byte)}, nil
}

// answers are the answers of a call in process. It implements grpc.ClientStream and rpc.Frames. It ends with its
// context, which the caller cancels.
type answers struct {
	grpc.ClientStream // has no other methods
	agent             *mcpAgent
	ctx               context.Context
	end               context.CancelFunc
	header            http.Header
	method            string
	request           any
	read              bool
	frames            chan []byte
	err               error // of the call; set before frames is closed
}

// SendMsg implements grpc.ClientStream.
func (s *answers) SendMsg(m any) error { s.request = m; return nil }

// CloseSend implements grpc.ClientStream. It begins the call.
func (s *answers) CloseSend() error {
	guard.Go(s.agent.log, func() error { // it ends with the context
		return s.agent.server.rpc.Stream(s.ctx, s.method, s.header, s)
	}, func(err error) {
		s.err = err
		close(s.frames)
		s.end()
	})
	return nil
}

// RecvMsg implements grpc.ClientStream.
func (s *answers) RecvMsg(m any) error {
	frame, ok := <-s.frames
	switch {
	case ok:
		return proto.Unmarshal(frame, m.(proto.Message)) // of a generated client
	case s.err != nil:
		return s.err
	}
	return io.EOF
}

// Read implements rpc.Frames.
func (s *answers) Read(m proto.Message, hold rpc.Hold) (int, error) {
	if s.read {
		return 0, io.EOF
	}
	s.read = true
	return fill(m, s.request, hold)
}

// Write implements rpc.Frames. The handler may use its frame again.
func (s *answers) Write(m proto.Message) error {
	frame, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	select {
	case s.frames <- frame:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}
