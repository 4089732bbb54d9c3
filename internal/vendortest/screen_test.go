package vendortest

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fakemodel"
)

// scenarios are the parts of the life of a session on a screen, in their order. After each, no receipt says more than
// the model has seen.
var scenarios = []struct {
	name string
	play func(r *run)
}{
	{"before the first turn", beforeTheFirstTurn},
	{"idle", whileIdle},
	{"in a turn", inATurn},
	{"at the end of a turn", atTheEnd},
	{"Esc", afterEsc},
	{"the broker is down and comes back", withoutABroker},
	{"the broker is frozen", frozen},
	{"killed in a turn and resumed", killedAndResumed},
}

func TestScreen_MailReachesTheModelOrStaysUnread(t *testing.T) {
	for i := range vendors {
		t.Run(vendors[i].name, func(t *testing.T) {
			r := newRun(t, &vendors[i])
			r.screen = r.open()
			for _, s := range scenarios {
				if !t.Run(s.name, func(t *testing.T) {
					r.t = t
					defer func() { r.t = r.whole }()
					s.play(r)
					r.truthful()
				}) {
					t.FailNow() // the next one begins where this one ends
				}
			}
			for id, subject := range r.sent { // what was not accepted was offered again
				if r.delivery(id).GetReadAt() == nil {
					t.Errorf("%q was never read", subject)
				}
			}
			r.vendor.result().played = true
		})
	}
}

// reached returns as soon as a request to the model has a message, and its number.
func (r *run) reached(subject string) int {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	if _, err := r.model.Await(ctx, func(q *fakemodel.Request) bool { return q.Has(subject) }); err != nil {
		r.t.Fatal(subject, err)
	}
	return slices.IndexFunc(r.model.Requests(), func(q fakemodel.Request) bool { return q.Has(subject) })
}

// arrives waits until a message has reached the model and is accepted, by one of the ways.
func (r *run) arrives(id string, ways ...pb.OfferWay) {
	r.t.Helper()
	r.reached(r.sent[id])
	r.accepted(id)
	offers := r.delivery(id).GetOffers()
	if last := offers[len(offers)-1]; last.GetAcceptedAt() == nil || len(ways) > 0 && !slices.Contains(ways, last.GetWay()) {
		r.t.Errorf("%q: %v", r.sent[id], offers)
	}
}

// turn enters a prompt, and waits until its turn has ended.
func (r *run) turn(text, last string) {
	r.t.Helper()
	idle := r.busy()
	r.prompt(r.screen, text, last)
	idle()
}

// noteTime logs how long something took since it began.
func (r *run) noteTime(what string, began time.Time) time.Duration {
	took := since(began)
	r.t.Logf("%s: %v", what, took.Round(time.Millisecond))
	return took
}

func beforeTheFirstTurn(r *run) {
	idle := r.busy()
	id := r.send("MAIL-before")
	if r.vendor.early {
		r.arrives(id, r.vendor.idle)
		idle()
	}
	r.turn("hello ", "PROMPT-first")
	if !r.vendor.early {
		r.arrives(id, withThePrompt...)
	}
}

// withThePrompt are the ways of mail that waits when the user sends a prompt: if the broker does not answer in time, the
// end of the turn brings it.
var withThePrompt = []pb.OfferWay{pb.OfferWay_OFFER_WAY_PROMPT, pb.OfferWay_OFFER_WAY_TURN_END}

func whileIdle(r *run) {
	for _, mail := range []string{"MAIL-idle-1", "MAIL-idle-2"} {
		began, idle := time.Now(), r.busy()
		id := r.send(mail)
		if r.vendor.idle == pb.OfferWay_OFFER_WAY_UNSPECIFIED {
			continue // nothing wakes it
		}
		n := r.reached(mail)
		r.vendor.result().idle = r.noteTime(mail, began)
		r.vendor.result().quote = quote(&r.model.Requests()[n], mail)
		r.arrives(id, r.vendor.idle)
		idle()
	}
	began, idle := time.Now(), r.busy()
	r.prompt(r.screen, "hello ", "PROMPT-while-idle")
	r.vendor.result().prompt = r.noteTime("the user's prompt", began)
	if took := time.Since(began); took > slowest {
		r.t.Errorf("the user's prompt took %v", took)
	}
	idle()
	first := r.reached("PROMPT-while-idle")
	for id, mail := range r.sent {
		if seen := r.reached(mail); r.vendor.idle == pb.OfferWay_OFFER_WAY_UNSPECIFIED && mail != "MAIL-before" {
			r.arrives(id, withThePrompt...)
			if seen < first {
				r.t.Errorf("%s woke the session", mail)
			}
			r.vendor.result().quote = quote(&r.model.Requests()[seen], mail)
		}
	}
}

// Three messages in a row are each in the model's next request.
func inATurn(r *run) {
	idle := r.busy()
	r.prompt(r.screen, "RUN: "+hold+" ;; RUN: "+hold+" ;; RUN: "+hold+" ;; RUN: true ;; ", "PROMPT-turn")
	var ids []string
	for _, mail := range []string{"MAIL-turn-1", "MAIL-turn-2", "MAIL-turn-3"} {
		r.begun(nil)
		if n := len(ids); n > 0 {
			if _, seen := r.model.Saw(r.sent[ids[n-1]]); !seen {
				r.t.Errorf("%s was not in the next request", r.sent[ids[n-1]])
			}
		}
		ids = append(ids, r.send(mail))
		began := time.Now()
		r.release()
		r.reached(mail)
		r.vendor.result().turn = r.noteTime(mail+", after the end of the tool", began)
	}
	idle()
	for _, id := range ids {
		r.arrives(id, pb.OfferWay_OFFER_WAY_TOOL_CALL, pb.OfferWay_OFFER_WAY_WAKE)
	}
}

// A message that comes while the model gives its last answer continues the turn, or wakes the session.
func atTheEnd(r *run) {
	idle := r.busy()
	r.prompt(r.screen, "WAIT: for-mail ", "PROMPT-end")
	id := r.send("MAIL-end")
	r.goOn()
	idle()
	r.arrives(id, pb.OfferWay_OFFER_WAY_TURN_END, r.vendor.idle)
}

// goOn lets the model end its turn.
func (r *run) goOn() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	if err := r.model.GoOn(ctx); err != nil {
		r.t.Fatal(err)
	}
}

func afterEsc(r *run) {
	idle := r.busy()
	r.prompt(r.screen, "RUN: "+hold+" ;; ", "PROMPT-esc")
	r.begun(nil)
	id := r.send("MAIL-esc")
	r.screen.keys("\x1b")
	if r.vendor.again != "" {
		r.screen.until(r.vendor.again)
		r.screen.keys("\x1b")
	}
	if r.vendor.ended != "" {
		r.screen.until(r.vendor.ended)
	}
	if r.vendor.idle != pb.OfferWay_OFFER_WAY_UNSPECIFIED {
		ended := time.Now()
		r.arrives(id) // it begins a turn of its own
		if took := time.Since(ended); took > 50*time.Second {
			r.t.Errorf("%v: the offer returned by itself", took)
		}
		idle()
	}
	r.turn("RUN: true ;; ", "PROMPT-after-esc")
	r.arrives(id)
}

func withoutABroker(r *run) {
	r.daemon.Kill()
	began := time.Now()
	r.prompt(r.screen, "RUN: true ;; ", "PROMPT-down")
	r.noteTime("the user's prompt with a broker that is down", began)
	if err := r.daemon.Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.later("MAIL-restarted", "PROMPT-restarted")
}

// later sends a message that reaches the session while it is idle, or with the user's next prompt.
func (r *run) later(mail, prompt string) {
	r.t.Helper()
	id := r.send(mail)
	if r.vendor.idle == pb.OfferWay_OFFER_WAY_UNSPECIFIED {
		r.turn("hello ", prompt)
	}
	r.arrives(id)
}

func frozen(r *run) {
	signal := func(s syscall.Signal) {
		if err := r.daemon.Signal(s); err != nil {
			r.t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	began := time.Now()
	r.prompt(r.screen, "RUN: true ;; ", "PROMPT-frozen")
	r.noteTime("the user's prompt with a broker that is frozen", began)
	if took := time.Since(began); took > slowest {
		r.t.Errorf("it took %v", took)
	}
	signal(syscall.SIGCONT)
	r.later("MAIL-thawed", "PROMPT-thawed")
}

func killedAndResumed(r *run) {
	r.prompt(r.screen, "RUN: "+hold+" ;; ", "PROMPT-killed")
	r.begun(nil)
	id := r.send("MAIL-killed")
	r.screen.end()
	r.endDaemon()
	r.release()
	r.truthful()
	r.screen = r.open(r.vendor.resume...)
	r.turn("RUN: true ;; ", "PROMPT-resumed")
	r.arrives(id)
}
