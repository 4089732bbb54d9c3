package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/turn"
	"brokerd/cmd/brokerctl/supervise"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// keepRun is what keep has done with a grant: the times of the extensions, and when and why it was lost.
type keepRun struct {
	extended []time.Duration
	lost     time.Duration
	cause    error // nil = it was not lost
}

// isLost reports whether the grant was lost at a time.
func (k keepRun) isLost(at time.Duration) bool {
	return k.lost == at && errors.As(k.cause, new(*supervise.ErrGrantLost))
}

// isKept reports whether the grant was not lost, and was extended at these times.
func (k keepRun) isKept(at ...time.Duration) bool {
	return k.cause == nil && slices.Equal(k.extended, at)
}

// keeping runs keep for 30 s in a bubble of synctest, on a grant that lasts 8 s. extend gets the
// number of the extension, beginning with 1. gone is closed after goneAfter; 0 = never.
func keeping(t *testing.T, goneAfter time.Duration, extend func(n int) error) (k keepRun) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began, gone := time.Now(), make(chan struct{})
		h := &supervise.Hold{Granted: began, Lasts: 8 * time.Second}
		h.Extend = func(context.Context) error {
			k.extended = append(k.extended, time.Since(began))
			return extend(len(k.extended))
		}
		ctx, lose := context.WithCancelCause(t.Context())
		defer lose(nil)
		if goneAfter > 0 {
			time.AfterFunc(goneAfter, func() { close(gone) })
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.Keep(ctx, lose, gone)
		}()
		select {
		case <-ctx.Done():
			k.lost, k.cause = time.Since(began), context.Cause(ctx)
		case <-time.After(30 * time.Second):
			lose(nil)
		}
		<-ended
	})
	return k
}

func TestHold_IsExtendedAtHalfTime(t *testing.T) {
	k := keeping(t, 13*time.Second, func(int) error { return nil })
	if !k.isKept(4*time.Second, 8*time.Second, 12*time.Second) {
		t.Errorf("%+v", k)
	}
}

func TestHold_ABrokerThatIsAwayIsAskedAgainUntilAQuarterOfTheTimeIsLeft(t *testing.T) {
	away := status.Error(codes.Unavailable, "no connection")
	k := keeping(t, 0, func(int) error { return away })
	if !k.isLost(6*time.Second) || len(k.extended) != 5 { // the first after 4 s, then each 400 ms
		t.Errorf("%+v", k)
	}
	k = keeping(t, 9*time.Second, func(n int) error {
		if n < 3 {
			return away
		}
		return nil
	})
	if !k.isKept(4*time.Second, 4400*time.Millisecond, 4800*time.Millisecond, 8800*time.Millisecond) {
		t.Errorf("%+v", k)
	}
}

func TestHold_ARefusedExtensionIsALossUnlessTheAgentHasReleased(t *testing.T) {
	refuse := func(int) error { return status.Error(codes.NotFound, "no such lock") }
	if k := keeping(t, 4500*time.Millisecond, refuse); !k.isKept(4 * time.Second) {
		t.Errorf("released: %+v", k)
	}
	if k := keeping(t, 0, refuse); !k.isLost(5 * time.Second) {
		t.Errorf("%+v", k)
	}
}

func TestHold_WhatItsOwnAgentGivesAwayIsNotLost(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1", "critic-1")
	holderOf := func(h *supervise.Hold) string {
		i := slices.IndexFunc(h.Env, func(pair [2]string) bool { return pair[0] == turn.HolderVariable })
		return h.Env[i][1]
	}
	for name, test := range map[string]struct {
		lost bool
		args []string
	}{
		"lock release":  {false, []string{"lock", "release", "--all", "--holder"}},
		"lock revoke":   {true, []string{"--agent", "", "lock", "revoke", "a.go", "--reason"}},
		"token pass":    {false, []string{"token", "pass", "review", "login", "critic-1", "--holder"}},
		"token release": {false, []string{"token", "release", "review", "page", "--holder"}},
	} {
		t.Run(name, func(t *shell) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c, cmd, out := printer(output.FormatTable)
			c.Global.Agent = "builder-1"
			c.Env.Variables, c.Env.Dir = t.environ(), t.dir
			cmd.SetContext(ctx)
			defer c.Close()
			var h *supervise.Hold
			var err error
			switch name {
			case "lock release", "lock revoke":
				h, err = new(supervise.RunOptions).Lock(c, cmd, []string{"a.go"}, pb.LockMode_LOCK_MODE_EXCLUSIVE)
			case "token pass":
				h, err = new(supervise.RunOptions).Token(c, cmd, "review", "login")
			case "token release":
				h, err = new(supervise.RunOptions).Token(c, cmd, "review", "page")
			}
			apptest.NoError(t, err)
			must0(t, append(append([]string{"--agent", "builder-1"}, test.args...), holderOf(h))...)
			held, lose := context.WithCancelCause(ctx)
			defer lose(nil)
			gone := make(chan struct{})
			h.Watch(held, c, cmd, lose, gone) // from the grant on, so that it also sees what has happened before
			select {
			case <-gone:
				if test.lost {
					t.Error("the grant was taken for released")
				}
			default:
				if cause := context.Cause(held); !test.lost || !errors.As(cause, new(*supervise.ErrGrantLost)) {
					t.Errorf("lost: %v\n%s", cause, out)
				}
			}
		})
	}
}
