package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/rpc"
	"brokerd/internal/store/postgres"
)

// Serve takes the connections of clients from a listener until Close.
func (r *Replica) Serve(l net.Listener) {
	r.mu.Lock()
	r.clients = append(r.clients, l)
	r.mu.Unlock()
	r.running.Go(func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // such as too many open files
				r.log.Warn("cannot accept a connection", zap.Error(err))
				pause(r.closing, haste)
				continue
			}
			r.running.Go(func() { r.admit(conn) })
		}
	})
}

// addresses returns the TCP addresses at which clients reach this replica, as they dial them.
func (r *Replica) addresses() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, l := range r.clients {
		text := rpc.Address(l)
		if r.entrance.Certificates != nil && l.Addr().Network() == "tcp" {
			text = "tls://" + text
		}
		all = append(all, text)
	}
	return all
}

// admit takes the connection of a client to the broker of this replica, or to the leader.
func (r *Replica) admit(conn net.Conn) {
	if here := r.state().here; here != nil {
		here.Pass(conn)
		return
	}
	stop := context.AfterFunc(r.closing, func() { _ = conn.Close() }) // ends every wait of forward
	passed, err := r.forward(conn)
	if !stop() || !passed {
		_ = conn.Close() // all that could be sent was sent
	}
	if err != nil && r.closing.Err() == nil {
		r.log.Debug("a connection was not forwarded", zap.Error(err))
	}
}

// forward connects a client with the leader, and returns when one of them has closed the connection. It reports true at
// once if it has passed the connection to a server of this process, which closes it.
func (r *Replica) forward(raw net.Conn) (passed bool, err error) {
	if err := raw.SetDeadline(time.Now().Add(handshakeTime)); err != nil { //nolint:forbidigo // the kernel's clock
		return false, err
	}
	conn, facts, err := r.entrance.Receive(raw)
	if err != nil {
		return false, err
	}
	if err := errors.Join(raw.SetDeadline(time.Time{}), rpc.DetectLoss(raw)); err != nil {
		return false, err
	}
	leader, at, err := r.reach(r.greet(facts, raw))
	switch {
	case at.here != nil: // this replica leads by now
		if encrypted, ok := conn.(*tls.Conn); ok {
			conn = rpc.Forwarded(encrypted, facts, raw.RemoteAddr(), raw.LocalAddr())
		}
		at.here.Pass(conn)
		return true, nil
	case err != nil:
		r.refuser.refuse(conn, facts, err)
		return true, err
	}
	r.forwarded.Add(1)
	stop := context.AfterFunc(at.term, func() { _, _ = raw.Close(), leader.NetConn().Close() }) // ends splice
	defer stop()
	splice(conn, leader)
	return false, leader.NetConn().Close()
}

// reach returns a connection to the leader that has accepted a greeting, and the state in which it was made. It waits
// for a leader for as long as patience permits. There is no connection if this replica leads.
func (r *Replica) reach(g greeting) (*tls.Conn, state, error) {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	ctx, cancel := context.WithTimeout(r.closing, r.patience)
	defer cancel()
	why := errNoLeader
	for delay := haste; ; delay = min(2*delay, beat) {
		at := r.state()
		if at.here != nil {
			return nil, at, nil
		}
		if at.leader != nil {
			conn, err := r.dial(ctx, *at.leader, g)
			if err == nil {
				return conn, at, nil
			}
			why = fmt.Errorf("%w: %s: %w", errOutOfReach, at.leader.Address, err)
		}
		r.poke()
		again, stop := context.WithTimeout(ctx, delay)
		select {
		case <-at.changed:
		case <-again.Done():
		}
		stop()
		if ctx.Err() != nil {
			return nil, at, why
		}
	}
}

var (
	errNoLeader   = errors.New("no replica leads")
	errOutOfReach = errors.New("the leader cannot be reached")
)

// dial opens a connection to the leader.
func (r *Replica) dial(ctx context.Context, leader postgres.Replica, g greeting) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	dialer := tls.Dialer{Config: mutual(r.own, func(certificate []byte) bool {
		return string(certificate) == string(leader.Certificate)
	})}
	raw, err := dialer.DialContext(ctx, "tcp", leader.Address)
	if err != nil {
		return nil, err
	}
	conn := raw.(*tls.Conn)
	if err := introduce(ctx, conn, g); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// introduce says who the client is, and waits until the leader accepts it.
func introduce(ctx context.Context, conn *tls.Conn, g greeting) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.NetConn().Close() }) // the read below returns then
	defer stop()
	if err := errors.Join(rpc.DetectLoss(conn.NetConn()), g.write(conn)); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return fmt.Errorf("it does not accept connections: %w", err)
	}
	if answer[0] != accepted {
		return fmt.Errorf("it answers %q", answer)
	}
	return nil
}

// A halfCloser can end what it sends and still read.
type halfCloser interface{ CloseWrite() error }

// splice copies bytes both ways until both ends have ended, or one has failed. A client that does not close its end
// after the leader has, as it would close the connection if the client was its own, gets endTime for that.
func splice(client, leader net.Conn) {
	var both sync.WaitGroup
	both.Go(func() {
		pour(client, leader)
		_ = client.SetReadDeadline(time.Now().Add(endTime)) //nolint:forbidigo // the kernel's clock; it fails if it is closed
	})
	both.Go(func() { pour(leader, client) })
	both.Wait()
}

// pour copies what one connection sends to another. An end is passed on; after a failure both are closed.
func pour(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.(halfCloser).CloseWrite() // connections over TCP, Unix sockets and TLS have it
	}
	if err != nil {
		_, _ = to.Close(), from.Close() // nothing more can be passed on
	}
}
