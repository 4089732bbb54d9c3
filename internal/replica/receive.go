package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/rpc"
)

// receive accepts the connections of other replicas until Close.
func (r *Replica) receive() {
	for {
		raw, err := r.among.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			r.log.Warn("cannot accept a connection of another replica", zap.Error(err))
			pause(r.closing, haste)
			continue
		}
		select {
		case r.handshakes <- struct{}{}:
		default: // the other one tries again
			_ = raw.Close()
			continue
		}
		r.running.Go(func() {
			defer func() { <-r.handshakes }()
			if err := r.welcome(raw); err != nil {
				_ = raw.Close() // the error says why
				r.log.Debug("a connection of another replica was refused",
					zap.Stringer("peer", raw.RemoteAddr()), zap.Error(err))
			}
		})
	}
}

// welcome passes a connection of another replica to the broker, if this replica leads.
func (r *Replica) welcome(raw net.Conn) error {
	if err := raw.SetDeadline(time.Now().Add(handshakeTime)); err != nil { //nolint:forbidigo // the kernel's clock
		return err
	}
	stop := context.AfterFunc(r.closing, func() { _ = raw.Close() }) // ends every wait below
	defer stop()
	conn := tls.Server(raw, mutual(r.own, r.knows))
	if err := conn.HandshakeContext(r.closing); err != nil {
		return err
	}
	g, err := readGreeting(conn)
	if err != nil {
		return err
	}
	facts, err := g.facts()
	if err != nil {
		return err
	}
	here := r.state().here
	if here == nil {
		return errors.New("this replica does not lead")
	}
	if _, err := conn.Write([]byte{accepted}); err != nil || g.Probe {
		return errors.Join(err, conn.Close())
	}
	if err := errors.Join(raw.SetDeadline(time.Time{}), rpc.DetectLoss(raw)); err != nil {
		return err
	}
	here.Pass(rpc.Forwarded(conn, facts, address(g.Client), address(g.Server)))
	return nil
}
