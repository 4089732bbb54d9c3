package broker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
)

// A held is a delivery as a SettleTx finds it.
type held struct {
	mail.DeliveryID
	state       mail.State
	rank        int64
	claims      int
	attempts    int
	maxAttempts int
	holder      int64
	consumer    string
	claimedAt   time.Time
	claimFor    time.Duration
	expiresAt   time.Time
	ordering    string
	queue       bool // of a role or channel
}

// claimID is the id of the last claim, or the revision alone if it was never claimed.
func (h *held) claimID() string {
	if h.claims == 0 {
		return strconv.FormatInt(h.Message, 10)
	}
	return msgid.ClaimID(h.Message, h.claims)
}

// locate finds the delivery that an item means, and makes sure that the actor may settle it.
func (s *SettleTx) locate(item *Settlement) (*held, error) {
	ref := item.Ref
	if _, err := mail.FindMessage(s.tx, s.actor.Session.ID, ref); err != nil {
		return nil, err
	}
	rows := s.tx.Query(selectHeld, ref.Revision, s.actor.Mailbox, s.actor.Mailbox)
	var best *held
	for rows.Next() {
		h := &held{}
		var state int
		if err := rows.Scan(&h.Message, &h.Mailbox, &state, &h.rank, &h.claims, &h.attempts, &h.maxAttempts, &h.holder,
			&h.consumer, &h.claimedAt, &h.claimFor, &h.expiresAt, &h.ordering, &h.queue); err != nil {
			return nil, err
		}
		h.state = mail.State(state)
		if best == nil || h.holder == s.actor.Mailbox && best.holder != s.actor.Mailbox {
			best = h
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if best == nil {
		return nil, s.notHeld(ref)
	}
	if best.state == mail.Claimed && s.Failures.lost(best) {
		return nil, s.lost(ref, "its holder has failed since")
	}
	if ref.Claim != 0 && (best.holder != s.actor.Mailbox || best.claims != ref.Claim) {
		return nil, s.lost(ref, "another claim has followed it")
	}
	mine := best.holder == s.actor.Mailbox
	if item.Verb == Ack {
		if !mine && best.state == mail.Claimed {
			return nil, s.lost(ref, "another agent has claimed it")
		}
		if !mine && best.Mailbox != s.actor.Mailbox {
			return nil, s.lost(ref, "you have not claimed it")
		}
		return best, nil
	}
	if !mine || best.state != mail.Claimed {
		return nil, s.lost(ref, "you do not hold it, it is "+strings.ToLower(best.state.String()))
	}
	return best, nil
}

// notHeld is the error for a message of which the actor has no copy. It names the agent that has
// claimed one.
func (s *SettleTx) notHeld(ref msgid.Ref) error {
	if s.actor.System() {
		return fault.New(fault.Precondition, "AGENT_REQUIRED",
			"message %s is not in the operators' mailbox; this call needs the agent that has it as its caller", ref.Text)
	}
	var holder string
	var number int
	err := s.tx.QueryRow(selectHolder, ref.Revision).Scan(&holder, &number)
	switch {
	case errors.Is(err, store.ErrNoRows):
		return s.lost(ref, "the agent does not hold it")
	case err != nil:
		return err
	}
	return claimLost(ref, fmt.Sprintf("%s holds the claim on %s (%s)", holder, ref.Text, msgid.ClaimID(ref.Revision, number)))
}

func (s *SettleTx) lost(ref msgid.Ref, why string) error {
	return claimLost(ref, fmt.Sprintf("the claim on %s is lost: %s", ref.Text, why))
}

func claimLost(ref msgid.Ref, text string) error {
	e := fault.New(fault.Precondition, "CLAIM_LOST", "%s; stop working on it", text)
	e.Resource, e.Name = "claim", ref.Text
	return e
}

// OnlyClaim returns the actor's only open claim.
func OnlyClaim(tx *store.Tx, a mail.Actor) (msgid.Ref, error) {
	var ids []string
	rows := tx.Query(selectOpenClaims, a.Mailbox)
	for rows.Next() {
		var revision int64
		var number int
		if err := rows.Scan(&revision, &number); err != nil {
			return msgid.Ref{}, err
		}
		ids = append(ids, msgid.ClaimID(revision, number))
	}
	if err := rows.Err(); err != nil {
		return msgid.Ref{}, err
	}
	switch len(ids) {
	case 0:
		return msgid.Ref{}, fault.New(fault.Precondition, "NO_OPEN_CLAIM",
			"agent %q holds no claim: it has claimed no message, or it has lost the claim; stop the work on it", a.Name)
	case 1:
		ref, _ := msgid.ParseRef(ids[0])
		return ref, nil
	}
	return msgid.Ref{}, fault.New(fault.Precondition, "SEVERAL_OPEN_CLAIMS", "agent %q holds several claims (%s): name the one you mean",
		a.Name, strings.Join(ids, ", "))
}

// heldBy returns claims of an agent, of whichever consumer, that it made before a time: at most limit.
func heldBy(q store.Querier, agent int64, until time.Time, limit int) ([]*held, error) {
	rows := q.Query(selectHeldBy, agent, until, limit)
	defer rows.Close()
	var found []*held
	for rows.Next() {
		h := &held{state: mail.Claimed, holder: agent}
		if err := rows.Scan(&h.Message, &h.Mailbox, &h.rank, &h.claims, &h.attempts, &h.maxAttempts, &h.consumer,
			&h.claimedAt, &h.claimFor, &h.expiresAt, &h.ordering, &h.queue); err != nil {
			return nil, err
		}
		found = append(found, h)
	}
	return found, rows.Err()
}
