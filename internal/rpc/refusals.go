package rpc

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/identity"
)

// A client that is refused again and again must not fill the disk with log lines. In each
// refusalWindow, a caller has one line per reason, and all callers together have refusalLines. At the
// end of the window, one more line has the number of the other refusals.
const (
	refusalWindow = time.Minute
	refusalLines  = 60
)

// A refusalLog logs refused calls and refused items of streams. Its methods may be called concurrently.
type refusalLog struct {
	clock clockwork.Clock
	log   *zap.Logger

	mu      sync.Mutex           // guards the fields below
	written map[refuser]struct{} // the lines of this window
	leftOut map[string]int       // refusals of this window without a line, by reason
	window  clockwork.Timer      // ends this window; nil = no window has begun
}

// A refuser is what the lines of a window differ in.
type refuser struct{ reason, session, agent, remote string }

func newRefusalLog(clock clockwork.Clock, log *zap.Logger) *refusalLog {
	return &refusalLog{clock: clock, log: log, written: map[refuser]struct{}{}, leftOut: map[string]int{}}
}

// note logs a refusal, or counts it for the end of the window. The line does not have the text of
// the error, which may quote the request.
func (r *refusalLog) note(ctx context.Context, msg, method string, who identity.Caller, code codes.Code, reason string, more ...zap.Field) {
	if !refuses(code) || !r.log.Core().Enabled(zapcore.InfoLevel) {
		return
	}
	of := refuser{reason, who.Session, who.Agent, connectionOf(ctx).AuthType()}
	if !r.admit(of) {
		return
	}
	r.log.Info(msg, append([]zap.Field{
		zap.String("method", short(method)), zap.String("session", of.session), zap.String("agent", of.agent),
		zap.String("remote", of.remote), zap.Stringer("code", code), zap.String("reason", reason),
	}, more...)...)
}

// refuses reports whether a code says that the broker refused a call. The others say that a call
// ended because the caller, the broker or the disk stopped, or because of a defect.
func refuses(code codes.Code) bool {
	switch code {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Internal, codes.Unknown:
		return false
	}
	return true
}

// admit reports whether a refusal has a line in this window.
func (r *refusalLog) admit(of refuser) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.window == nil {
		r.window = r.clock.AfterFunc(refusalWindow, r.end)
	}
	if _, known := r.written[of]; known || len(r.written) == refusalLines {
		r.leftOut[of.reason]++
		return false
	}
	r.written[of] = struct{}{}
	return true
}

// end ends the window, if one has begun.
func (r *refusalLog) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.window == nil {
		return
	}
	r.window.Stop()
	r.window = nil
	if len(r.leftOut) > 0 {
		r.log.Info("further calls were refused", zap.Any("left_out", maps.Clone(r.leftOut)))
	}
	clear(r.leftOut)
	clear(r.written)
}

// ItemError is ItemError for a refused item of the stream with this context. It also counts and logs
// the refusal.
func (s *Server) ItemError(ctx context.Context, err error) *pb.ItemError {
	item := ItemError(err)
	if item == nil {
		return nil
	}
	if s.observer != nil {
		s.observer.Refused(item.Reason)
	}
	method, _ := grpc.Method(ctx)
	s.refusals.note(ctx, "an item of a stream was refused", method, identity.FromContext(ctx), codes.Code(item.Code), item.Reason)
	return item
}
