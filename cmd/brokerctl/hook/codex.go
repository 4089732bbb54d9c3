package hook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// mostQueued is the size of a text that codex queue gets, in bytes: it is one word of a command.
const mostQueued = 100 << 10

// wakeCodex waits in the background for mail, and starts a turn of the session with it whenever the session is idle:
// in a turn, other hooks pass mail on. Codex drops what such a hook prints. It ends with the session.
func (h *Hook) wakeCodex(ctx context.Context, end func(), l *listener) error {
	s, ok := h.codexSession()
	if !ok {
		return nil
	}
	if source := s.settled(ctx); source == "" || source == "exec" {
		return nil // a subagent, or a run without a screen, which reads no message that comes later
	}
	go s.endWith(ctx, end)
	var held int64 // the newest message of those that the agent does not want to hear of
	for ctx.Err() == nil {
		err := h.as(ctx, func(broker *client.Client) error {
			if err := h.listens(ctx, pb.OfferWay_OFFER_WAY_APP_SERVER); err != nil {
				return err
			}
			var newest int64
			err := mail.Watch(ctx, broker, func(ctx context.Context) (bool, error) {
				items, err := mail.Unseen(ctx, broker, true, mail.MostWaiting)
				for _, item := range items {
					newest = max(newest, item.GetMessage().GetRevision())
				}
				return newest > held, err
			})
			if err != nil {
				return err
			}
			passed, err := h.wakeIdle(ctx, s, l)
			if !passed {
				held = newest
			}
			return err
		})
		if err != nil && ctx.Err() == nil && !command.Away(err) {
			return nil
		}
		if err != nil { // the broker may come back
			rest(ctx)
		}
	}
	return nil
}

// rest waits a moment, at most until ctx ends.
func rest(ctx context.Context) {
	pause := time.NewTimer(agentCheck)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// settled returns the source of the session as soon as the file of the conversation says it; "" if it does not in time.
func (s *codexSession) settled(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, codexHello)
	defer cancel()
	for ctx.Err() == nil {
		if source := s.source(); source != "" {
			return source
		}
		rest(ctx)
	}
	return ""
}

// endWith calls end when no program has the session open any more. It returns when ctx ends.
func (s *codexSession) endWith(ctx context.Context, end func()) {
	for ctx.Err() == nil {
		if rest(ctx); !s.alive() {
			end()
			return
		}
	}
}

// wakeIdle waits until the session is idle, and then passes to it what waits, if the agent wants any of it: by Codex's
// server, else by its queue. The errors are those of the broker.
func (h *Hook) wakeIdle(ctx context.Context, s *codexSession, l *listener) (passed bool, err error) {
	way := pb.OfferWay_OFFER_WAY_APP_SERVER
	server, err := s.server(ctx)
	if err != nil {
		return false, err
	}
	if server != nil {
		defer server.close()
	} else {
		way = pb.OfferWay_OFFER_WAY_QUEUE
		for !s.idle() {
			if rest(ctx); ctx.Err() != nil {
				return false, ctx.Err()
			}
		}
	}
	wakes := FileNumber(l.count)
	if wakes >= MostWakes {
		_ = h.listens(ctx, pb.OfferWay_OFFER_WAY_UNSPECIFIED)
		<-ctx.Done() // the next prompt of the user has a new listener
		return false, ctx.Err()
	}
	h.mark = prompt.NewMark()
	n, err := h.gather(ctx, way, func(*pb.InboxItem) bool { return true })
	if err != nil || n.empty() {
		return false, err
	}
	if os.WriteFile(l.count, fmt.Append(nil, wakes+1), 0o600) != nil {
		err = errors.New("the wakes cannot be counted")
	}
	err = h.pass(ctx, n, err, func(text string) error {
		if server != nil {
			return s.start(ctx, server, h.mark, text)
		}
		return h.queue(ctx, s, text)
	})
	if err != nil {
		rest(ctx)
		return true, nil
	}
	if server != nil {
		h.confirm(ctx, s, server)
	}
	return true, nil
}

// confirm accepts what was offered when the message is in the conversation. The prompt's hook may do that first, and
// begin a listener that ends this one.
func (h *Hook) confirm(ctx context.Context, s *codexSession, server *codexServer) {
	ctx = context.WithoutCancel(ctx)
	if s.entered(ctx, server, h.mark) != nil {
		return // the offer returns by itself
	}
	ctx, cancel := context.WithTimeout(ctx, command.CallTimeout)
	defer cancel()
	_, _ = h.broker.Messages().SettleOffers(ctx, &pb.SettleOffersRequest{ // otherwise the prompt's hook does that
		Marks: []string{h.mark}, Harness: h.session(), Outcome: &pb.SettleOffersRequest_Accepted{Accepted: true},
	})
}

// queue puts a text into Codex's queue for the session, which delivers it when the session is idle. The prompt's hook
// sees that. A session that has ended would keep it.
func (h *Hook) queue(ctx context.Context, s *codexSession, text string) error {
	if !s.alive() || len(text) > mostQueued {
		return errors.New("the session cannot take it")
	}
	program, err := h.C.Env.LookPath("codex")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, command.CallTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "queue", "--thread", s.id, "--message="+text)
	cmd.Env, cmd.Dir = h.C.Env.Variables, h.C.Env.ChildDir()
	return cmd.Run()
}
