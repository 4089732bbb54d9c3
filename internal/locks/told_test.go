package locks_test

import (
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/caller"
	"brokerd/internal/events"
	"brokerd/internal/locks"
	"brokerd/internal/once"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// teller has answers come, or get lost, in whichever order.
type teller struct {
	t     *testing.T
	clock *clockwork.FakeClock
	store *store.Store
	table *locks.Table
	calls *locks.Series // of a
}

func newTeller(t *testing.T) *teller {
	clock := clockwork.NewFakeClock()
	k := &teller{t: t, clock: clock, store: testkit.Store(t, t.TempDir(), clock, once.Migrations(), events.Migrations(), locks.Migrations())}
	k.start()
	return k
}

func (k *teller) start() {
	k.table = newTable(k.t, k.store, k.clock)
	k.calls = k.table.Series(agentOf("a"))
}

func agentOf(name string) caller.Caller {
	return caller.Caller{Access: caller.Agent, Session: "default", Agent: name}
}

var wish = locks.Wish{Paths: []string{"x"}, Mode: locks.Exclusive, MaxHold: time.Hour}

// ask returns an answer to a that is on its way.
func (k *teller) ask() *locks.Answer {
	k.t.Helper()
	answers := make(chan locks.Answer, 1)
	k.calls.Acquire(k.t.Context(), once.Request{}, wish, func(a locks.Answer, err error) {
		if err != nil {
			k.t.Error(err)
		}
		answers <- a
	})
	a := <-answers
	want(k.t, "outcome", a.Outcome, locks.Granted)
	return &a
}

// passesOn reports whether b gets the lock once a has been given the time to ask for it. The alarm has a goroutine of its own, so b tries often.
func (k *teller) passesOn(tries int) bool {
	k.t.Helper()
	k.clock.Advance(10*time.Second + time.Millisecond)
	as := agentOf("b")
	for range tries {
		a, err := k.table.Acquire(k.t.Context(), as, once.Request{}, wish)
		must(k.t, err)
		if a.Outcome == locks.Granted {
			return true
		}
	}
	return false
}

const (
	often  = 300
	longer = 100_000 // it ends with the first that is granted
)

func TestTold_LostAnswerPassesTheGrantOn(t *testing.T) {
	k := newTeller(t)
	k.table.Told(k.ask(), false)
	want(t, "passes on", k.passesOn(longer), true)
}

func TestTold_LateLossOfAnAnswerTakesNothingFromAnOwnerWhoWasToldAgain(t *testing.T) {
	k := newTeller(t)
	first := k.ask()
	again := k.ask()
	k.table.Told(again, true)
	k.table.Told(first, false)
	want(t, "passes on", k.passesOn(often), false)
}

func TestTold_LossOfAllAnswersPassesTheGrantOn(t *testing.T) {
	k := newTeller(t)
	first := k.ask()
	again := k.ask()
	k.table.Told(first, false)
	k.table.Told(again, false)
	want(t, "passes on", k.passesOn(longer), true)
}

func TestTold_LossOfALaterAnswerTakesNothing(t *testing.T) {
	k := newTeller(t)
	k.table.Told(k.ask(), true)
	k.table.Told(k.ask(), false)
	want(t, "passes on", k.passesOn(often), false)
}

func TestTold_OwnerWhoAsksAgainAfterALossHasTheGrant(t *testing.T) {
	k := newTeller(t)
	k.table.Told(k.ask(), false)
	again := k.ask()
	want(t, "held before", again.Held, false)
	k.table.Told(again, true)
	want(t, "passes on", k.passesOn(often), false)
}

func TestTold_WhatWasHeldBeforeARestartIsKnown(t *testing.T) {
	k := newTeller(t)
	k.table.Told(k.ask(), true)
	k.table.Stop()
	k.start()
	k.table.Told(k.ask(), false)
	want(t, "passes on", k.passesOn(often), false)
}
