package replica

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// again is how long a replica waits after it has failed to lead.
const again = time.Second

// A Term leads until the lead is lost (store.ErrUnknown) or ctx ends.
type Term func(ctx context.Context) error

// Run stands by and leads in turn, until ctx ends or something fails that another try would not mend. standBy waits
// until no other replica leads, and has called Lead when it returns.
func (r *Replica) Run(ctx context.Context, standBy func(ctx context.Context) (Term, error)) error {
	for before := ""; ; {
		term, err := standBy(ctx)
		if err != nil && ctx.Err() != nil {
			return nil // it was asked to stop while it stood by
		}
		if err == nil {
			r.log.Info("this replica leads", zap.String("replica", r.Address()))
			err = term(ctx)
		}
		unknown := errors.Is(err, store.ErrUnknown)
		switch {
		case unknown && ctx.Err() != nil:
			return nil // it has lost the lead by then
		case ctx.Err() != nil, !passes(err), !r.listRead():
			return err
		}
		if err.Error() != before { // it may last
			before = err.Error()
			r.log.Warn("this replica does not lead", zap.Error(err))
		}
		if !unknown { // else another one leads by now, and this one waits for the lock
			pause(ctx, again)
		}
	}
}

// passes reports whether an error of a replica's broker is one after which the replica stands by again: the lead was
// lost, or the server cannot serve it at present.
func passes(err error) bool {
	var fe *fault.Error
	return errors.Is(err, store.ErrUnknown) ||
		errors.As(err, &fe) && (fe.Kind == fault.Unavailable || fe.Reason == "IN_USE")
}

// listRead reports whether the list of replicas could be read at least once.
func (r *Replica) listRead() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list != nil
}
