package locks_test

import (
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/apptest"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/locks"
	"brokerd/internal/store"
)

// A teller has a lock table whose answers reach their agents, or are lost, in any order.
type teller struct {
	t     *testing.T
	clock *clockwork.FakeClock
	store *store.Store
	table *locks.Table
}

func newTeller(t *testing.T) *teller {
	clock := clockwork.NewFakeClock()
	k := &teller{t: t, clock: clock, store: newStore(t, clock)}
	k.start()
	return k
}

func (k *teller) start() { k.table = newTable(k.t, k.store, k.clock) }

func agentOf(name string) identity.Caller {
	return identity.Caller{Access: identity.Agent, Session: "default", Agent: name}
}

func wish(path string) locks.Wish {
	return locks.Wish{Paths: []string{path}, Mode: locks.Exclusive, MaxHold: time.Hour}
}

// ask returns an answer to a, on its way, that grants x.
func (k *teller) ask() *locks.Answer {
	k.t.Helper()
	return k.grant("a", "x")
}

func (k *teller) grant(agent, path string) *locks.Answer {
	k.t.Helper()
	answers := make(chan locks.Answer, 1)
	k.table.Series(agentOf(agent)).Acquire(k.t.Context(), idempotency.Request{}, wish(path), func(a locks.Answer, err error) {
		if err != nil {
			k.t.Error(err)
		}
		answers <- a
	})
	a := <-answers
	want(k.t, "outcome", a.Outcome, locks.Granted)
	return &a
}

// passesOn reports whether b gets x after the time in which a may ask for it. A grant whose answer
// was lost a millisecond later passes on after that of x, so its next holder acquires it only once
// the table has decided about x.
func (k *teller) passesOn() bool {
	k.t.Helper()
	k.clock.Advance(time.Millisecond)
	k.table.Told(k.grant("c", "later"), false)
	k.clock.Advance(10 * time.Second)
	later := wish("later")
	later.Wait = time.Hour
	d, err := k.table.Acquire(k.t.Context(), agentOf("d"), idempotency.Request{}, later)
	apptest.NoError(k.t, err)
	want(k.t, "outcome", d.Outcome, locks.Granted)
	b, err := k.table.Acquire(k.t.Context(), agentOf("b"), idempotency.Request{}, wish("x"))
	apptest.NoError(k.t, err)
	return b.Outcome == locks.Granted
}

func TestTold_LostAnswerPassesTheGrantOn(t *testing.T) {
	t.Parallel()
	k := newTeller(t)
	k.table.Told(k.ask(), false)
	want(t, "passes on", k.passesOn(), true)
}

func TestTold_LateLossOfAnAnswerTakesNothingFromAnOwnerWhoWasToldAgain(t *testing.T) {
	t.Parallel()
	k := newTeller(t)
	first := k.ask()
	again := k.ask()
	k.table.Told(again, true)
	k.table.Told(first, false)
	want(t, "passes on", k.passesOn(), false)
}

func TestTold_LossOfAllAnswersPassesTheGrantOn(t *testing.T) {
	t.Parallel()
	k := newTeller(t)
	first := k.ask()
	again := k.ask()
	k.table.Told(first, false)
	k.table.Told(again, false)
	want(t, "passes on", k.passesOn(), true)
}

func TestTold_LossOfALaterAnswerTakesNothing(t *testing.T) {
	t.Parallel()
	k := newTeller(t)
	k.table.Told(k.ask(), true)
	k.table.Told(k.ask(), false)
	want(t, "passes on", k.passesOn(), false)
}

func TestTold_OwnerWhoAsksAgainAfterALossHasTheGrant(t *testing.T) {
	t.Parallel()
	k := newTeller(t)
	k.table.Told(k.ask(), false)
	again := k.ask()
	want(t, "held before", again.Held, false)
	k.table.Told(again, true)
	want(t, "passes on", k.passesOn(), false)
}

func TestTold_WhatWasHeldBeforeARestartIsKnown(t *testing.T) {
	t.Parallel()
	k := newTeller(t)
	k.table.Told(k.ask(), true)
	k.table.Stop()
	k.start()
	k.table.Told(k.ask(), false)
	want(t, "passes on", k.passesOn(), false)
}
