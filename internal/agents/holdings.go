package agents

import (
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A Holder knows what agents hold.
type Holder interface {
	// Holdings adds what it knows of an agent's, at most 1,000 of each kind, oldest first.
	Holdings(q store.Querier, a directory.Agent, to *work.Holdings) error
}

// UseHolders plugs in who knows what agents hold.
func (r *Registry) UseHolders(h ...Holder) { r.holders = append(r.holders, h...) }

// Own returns the calling agent, with what it holds. Errors: as Acting; fault.Precondition for a call that names no
// agent.
func (r *Registry) Own(q store.Querier, who identity.Caller) (directory.Agent, work.Holdings, error) {
	var held work.Holdings
	a, err := r.calling(q, who)
	for i := 0; i < len(r.holders) && err == nil; i++ {
		err = r.holders[i].Holdings(q, a.Entry(), &held)
	}
	return a.Entry(), held, err
}

// sizeOf returns about how many bytes holdings take in an answer.
func sizeOf(h *work.Holdings) int {
	n := 64 * (len(h.Claims) + len(h.Locks) + len(h.Tokens) + len(h.Tickets) + len(h.Asked) + len(h.ToAnswer))
	for i := range h.Claims {
		c := &h.Claims[i]
		n += len(c.ClaimID) + len(c.Consumer) + len(c.MessageID) + len(c.Type) + len(c.Subject) + len(c.Sender)
	}
	for i := range h.Locks {
		n += len(h.Locks[i].Holder) + textSize(h.Locks[i].Paths)
	}
	for i := range h.Tokens {
		n += len(h.Tokens[i].Type) + len(h.Tokens[i].Scope) + len(h.Tokens[i].Holder)
	}
	for i := range h.Tickets {
		n += textSize(h.Tickets[i].Resources)
	}
	for i := range h.Work {
		n += 128 + len(h.Work[i].Title) + calls.Size(h.Work[i].Calls)
	}
	for _, list := range [][]work.OpenQuestion{h.Asked, h.ToAnswer} {
		for i := range list {
			n += len(list[i].ID) + len(list[i].Sender) + len(list[i].Subject)
		}
	}
	return n
}

func textSize(texts []string) int {
	n := 0
	for _, t := range texts {
		n += 2 + len(t)
	}
	return n
}
