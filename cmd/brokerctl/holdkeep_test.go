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

	pb "brokerd/gen/brokerd/v1"
)

// keeping runs keep in a bubble of synctest, on a grant that lasts 8 s. extend gets the number of the extension,
// beginning with 1. gone is closed after goneAfter; 0 = never. It returns the times of the extensions, and the time and the cause
// of the loss within 30 s.
func keeping(t *testing.T, goneAfter time.Duration, extend func(n int) error) (extended []time.Duration, lostAfter time.Duration, cause error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began, gone := time.Now(), make(chan struct{})
		h := &hold{granted: began, lasts: 8 * time.Second}
		h.extend = func(context.Context) error {
			extended = append(extended, time.Since(began))
			return extend(len(extended))
		}
		ctx, lose := context.WithCancelCause(t.Context())
		defer lose(nil)
		if goneAfter > 0 {
			time.AfterFunc(goneAfter, func() { close(gone) })
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.keep(ctx, lose, gone)
		}()
		select {
		case <-ctx.Done():
			lostAfter, cause = time.Since(began), context.Cause(ctx)
		case <-time.After(30 * time.Second):
			lose(nil)
		}
		<-ended
	})
	return extended, lostAfter, cause
}

func TestHold_IsExtendedAtHalfTime(t *testing.T) {
	extended, _, cause := keeping(t, 13*time.Second, func(int) error { return nil })
	if want := []time.Duration{4 * time.Second, 8 * time.Second, 12 * time.Second}; !slices.Equal(extended, want) || cause != nil {
		t.Errorf("extended after %v, want %v; %v", extended, want, cause)
	}
}

func TestHold_ABrokerThatIsAwayIsAskedAgainUntilAQuarterOfTheTimeIsLeft(t *testing.T) {
	away := status.Error(codes.Unavailable, "no connection")
	extended, lostAfter, cause := keeping(t, 0, func(int) error { return away })
	if lostAfter != 6*time.Second || !errors.As(cause, new(*errGrantLost)) || len(extended) != 5 { // after 4 s, each 400 ms
		t.Errorf("lost after %v, extended after %v: %v", lostAfter, extended, cause)
	}
	extended, lostAfter, cause = keeping(t, 9*time.Second, func(n int) error {
		if n < 3 {
			return away
		}
		return nil
	})
	if want := []time.Duration{4 * time.Second, 4400 * time.Millisecond, 4800 * time.Millisecond, 8800 * time.Millisecond}; cause != nil || !slices.Equal(extended, want) {
		t.Errorf("lost after %v, extended after %v, want %v: %v", lostAfter, extended, want, cause)
	}
}

func TestHold_ARefusedExtensionIsALossUnlessTheAgentHasReleased(t *testing.T) {
	refused := status.Error(codes.NotFound, "no such lock")
	if _, lostAfter, cause := keeping(t, 4500*time.Millisecond, func(int) error { return refused }); cause != nil {
		t.Errorf("released, and lost after %v: %v", lostAfter, cause)
	}
	if _, lostAfter, cause := keeping(t, 0, func(int) error { return refused }); lostAfter != 5*time.Second || !errors.As(cause, new(*errGrantLost)) {
		t.Errorf("lost after %v: %v", lostAfter, cause)
	}
}

func TestHold_WhatItsOwnAgentGivesAwayIsNotLost(t *testing.T) {
	startBroker(t)
	register(t, "builder-1", "critic-1")
	holderOf := func(h *hold) string {
		i := slices.IndexFunc(h.env, func(pair [2]string) bool { return pair[0] == holderVariable })
		return h.env[i][1]
	}
	for name, test := range map[string]struct {
		lost bool
		args func(h *hold) []string
	}{
		"lock release": {false, func(h *hold) []string {
			return []string{"--agent", "builder-1", "lock", "release", "--all", "--holder", holderOf(h)}
		}},
		"lock revoke": {true, func(*hold) []string { return []string{"lock", "revoke", "a.go", "--reason", "builder-1 hangs"} }},
		"token pass": {false, func(h *hold) []string {
			return []string{"--agent", "builder-1", "token", "pass", "review", "login", "critic-1", "--holder", holderOf(h)}
		}},
		"token release": {false, func(h *hold) []string {
			return []string{"--agent", "builder-1", "token", "release", "review", "page", "--holder", holderOf(h)}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c, cmd, out := printer(formatTable)
			c.global.agent = "builder-1"
			cmd.SetContext(ctx)
			defer c.close()
			var h *hold
			var err error
			switch name {
			case "lock release", "lock revoke":
				h, err = new(runOptions).lock(c, cmd, []string{"a.go"}, pb.LockMode_LOCK_MODE_EXCLUSIVE)
			case "token pass":
				h, err = new(runOptions).token(c, cmd, "review", "login")
			case "token release":
				h, err = new(runOptions).token(c, cmd, "review", "page")
			}
			if err != nil {
				t.Fatal(err)
			}
			must0(t, test.args(h)...)
			held, lose := context.WithCancelCause(ctx)
			defer lose(nil)
			gone := make(chan struct{})
			h.watch(held, c, cmd, lose, gone) // from the grant on, so that it also sees what has happened before
			select {
			case <-gone:
				if test.lost {
					t.Error("the grant was taken for released")
				}
			default:
				if cause := context.Cause(held); !test.lost || !errors.As(cause, new(*errGrantLost)) {
					t.Errorf("lost: %v\n%s", cause, out)
				}
			}
		})
	}
}
