package replica

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/rpc"
	"brokerd/internal/store"
	"brokerd/internal/web"
)

// retry is how long a client waits after a refusal.
const retry = 100 * time.Millisecond

// A refuser answers every call with NO_LEADER.
type refuser struct {
	calls, pages *rpc.Passage // of gRPC and of HTTP
	grpc         *rpc.Refusing
	http         *http.Server
	running      sync.WaitGroup

	mu  sync.Mutex
	why error // why a connection was last refused
}

func newRefuser() *refuser {
	f := &refuser{calls: rpc.NewPassage(), pages: rpc.NewPassage()}
	f.grpc = rpc.NewRefusing(f.answer)
	f.http = &http.Server{Handler: web.Refusal(f.answer), ReadTimeout: handshakeTime, WriteTimeout: handshakeTime}
	f.http.SetKeepAlivesEnabled(false)
	f.running.Go(func() { _ = f.grpc.Serve(f.calls) }) // both end with stop
	f.running.Go(func() { _ = f.http.Serve(f.pages) })
	return f
}

// refuse takes over the connection of a client that was received.
func (f *refuser) refuse(conn net.Conn, facts rpc.Facts, why error) {
	f.mu.Lock()
	if f.why = errNoLeader; errors.Is(why, errOutOfReach) { // the rest is not for a client that has proved nothing
		f.why = errOutOfReach
	}
	f.mu.Unlock()
	if facts.HTTP2 {
		f.calls.Pass(conn)
	} else {
		f.pages.Pass(conn)
	}
}

// answer returns the error that clients get.
func (f *refuser) answer() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := fault.New(fault.Unavailable, store.ReasonNoLeader, "this replica cannot pass the call on: %v", f.why)
	e.RetryAfter = retry
	return e
}

func (f *refuser) stop() error {
	f.grpc.Stop()
	err := f.http.Close()
	f.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("stop refusing: %w", err)
	}
	return err
}
