package broker

import (
	"context"
	"errors"
	"slices"

	"brokerd/internal/store"
)

// Next waits for something to say. It returns done = true after the last frame: another stream has
// taken over, or the broker stops and everything is settled.
func (s *ClaimStream) Next(ctx context.Context) (f Frame, done bool, err error) {
	stopping := s.broker.stopping
	for {
		s.mu.Lock()
		if s.away {
			stopping = nil
		}
		f, s.frame = s.frame, Frame{}
		if s.left {
			f.Deliver, s.frame.Deliver = nil, f.Deliver
		}
		if n := fitting(f.Deliver); n < len(f.Deliver) {
			f.Deliver, s.frame.Deliver = f.Deliver[:n], f.Deliver[n:]
			signal(s.wake)
		}
		for i := range f.Deliver {
			id := f.Deliver[i].ClaimID()
			o := s.open[id]
			o.sent = true
			s.open[id] = o
		}
		s.unanswered -= len(f.Results)
		done = s.ended != nil || s.away && len(s.open) == 0
		s.mu.Unlock()
		if len(f.Results) > 0 {
			signal(s.settled)
		}
		if err := readContents(ctx, s.broker.store, f.Deliver); err != nil {
			s.Unsaid(f.Deliver)
			return Frame{}, true, err
		}
		f.Deliver = s.dropEnded(f.Deliver)
		if done || len(f.Results) > 0 || len(f.Deliver) > 0 || len(f.Revoked) > 0 {
			return f, done, nil
		}
		select {
		case <-s.wake:
		case <-stopping:
			s.consumer.gone.Store(true)
			s.mu.Lock()
			s.away = true
			s.mu.Unlock()
			return Frame{GoAway: claimGrace}, false, nil
		case <-ctx.Done():
			return Frame{}, true, ctx.Err()
		}
	}
}

// Sent notes that claims of a frame were written to the client, so that the stream may get more.
func (s *ClaimStream) Sent(claims []Claim) {
	bytes := 0
	for i := range claims {
		bytes += claims[i].size()
	}
	clear(claims) // others of the same list wait, and keep it in memory
	s.broker.Waiters.wrote(s.consumer, bytes)
}

// dropEnded returns the claims without those whose messages were removed.
func (s *ClaimStream) dropEnded(claims []Claim) []Claim {
	bytes := 0
	left := slices.DeleteFunc(claims, func(c Claim) bool {
		if c.unread > 0 {
			bytes += c.unread
		}
		return c.unread > 0
	})
	if bytes > 0 {
		s.broker.Waiters.wrote(s.consumer, bytes)
	}
	return left
}

// Unsaid takes back claims of a frame that could not be written.
func (s *ClaimStream) Unsaid(claims []Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range claims {
		id := claims[i].ClaimID()
		if o, ok := s.open[id]; ok {
			o.sent = false
			s.open[id] = o
		}
	}
	s.frame.Deliver = append(slices.Clone(claims), s.frame.Deliver...)
}

// fitting returns how many of the claims, from the first on, a stream holds to send them: maxUnsent, or
// one.
func fitting(claims []Claim) int {
	bytes := 0
	for i := range claims {
		if bytes += claims[i].size(); bytes > maxUnsent && i > 0 {
			return i
		}
	}
	return len(claims)
}

// readContents reads the contents of claims that do not have them. The claim of a message that was
// removed since then has ended; it stays without its content.
func readContents(ctx context.Context, st *store.Store, claims []Claim) error {
	if !slices.ContainsFunc(claims, func(c Claim) bool { return c.unread > 0 }) {
		return nil
	}
	return st.Read(ctx, func(snap *store.Snapshot) error {
		for i := range claims {
			c := &claims[i]
			if c.unread == 0 {
				continue
			}
			switch err := snap.QueryRow(selectContent, c.Revision).Scan(&c.Content); {
			case err == nil:
				c.unread = 0
			case !errors.Is(err, store.ErrNoRows):
				return err
			}
		}
		return nil
	})
}
