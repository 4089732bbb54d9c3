package broker

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// The types of message that are directives: what those who direct a session tell agents.
const (
	nudgeType     = "nudge"
	haltType      = "halt"
	resumeType    = "resume"
	terminateType = "terminate"
	shutdownType  = "shutdown_request"
)

const (
	// DirectivePriority is that of every directive.
	DirectivePriority = 10
	// DirectiveRank is above the rank of every directive, and below that of everything else.
	DirectiveRank = math.MinInt64 / 2
	// maxDirectives is how many unfinished directives one answer names.
	maxDirectives = 100
)

// IsDirective reports whether messages of a type are directives.
func IsDirective(kind string) bool {
	switch kind {
	case nudgeType, haltType, resumeType, terminateType, shutdownType:
		return true
	}
	return false
}

// directRank is a directive's place: in front of everything else, however long that has waited, in the order of sending.
func directRank(sent time.Time) int64 { return math.MinInt64 + sent.UnixNano() }

// directive reports whether a delivery is of a directive.
func (p place) directive() bool { return p.rank < DirectiveRank }

// mayDirect refuses a directive from those who may not send one.
func (a Actor) mayDirect(kind string) error {
	directors := a.Session.Directors
	if a.System() || slices.Contains(directors, a.Role) {
		return nil
	}
	who := "operators"
	if len(directors) > 0 {
		who += " and agents with the role " + strings.Join(directors, " or ")
	}
	return fault.New(fault.Denied, "NOT_A_DIRECTOR", "%s is a directive, which only %s may send in session %q (setting directors); agent %q has the role %q",
		kind, who, a.Session.Name, a.Name, a.Role)
}

// direct applies a directive to its recipients: a halt halts them, a resume ends that and settles the
// earlier halts in their mailboxes.
func (s *sending) direct(d *Draft, message int64, to []*room) error {
	if d.Type != haltType && d.Type != resumeType {
		return nil
	}
	var changed []string
	for _, r := range to {
		n, err := int64(0), error(nil)
		if d.Type == haltType {
			n, err = s.tx.ExecCount(insertHalt, r.id, message, s.tx.Now())
		} else {
			if err := s.endHalts(r, message); err != nil {
				return err
			}
			n, err = s.tx.ExecCount(deleteHalt, r.id)
		}
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		changed = append(changed, r.name)
		if d.Type == resumeType {
			s.reconsider(s.tx, r.id)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	s.gates.Clear(s.tx)
	if d.Type == resumeType {
		for _, name := range changed {
			for _, hook := range s.resumed {
				if err := hook(s.tx, s.actor.Session.ID, name); err != nil {
					return err
				}
			}
		}
	}
	entry := s.actor.Event("agent.halted")
	past := "halted"
	if d.Type == resumeType {
		entry.Type, past = "agent.resumed", "resumed"
	}
	entry.Category = events.Agent
	entry.Summary = counted(len(changed), "agent") + " " + past
	if len(changed) == 1 {
		entry.Summary = changed[0] + " " + past
		entry.Related = changed
	}
	if d.Subject != "" {
		entry.Summary += ": " + d.Subject
	}
	names, _ := json.Marshal(changed) // names always marshal
	entry.Details = `{"agents":` + string(names) + `,"message":` + strconv.FormatInt(message, 10) + `}`
	_, err := s.log.Append(s.tx, entry)
	return err
}

// endHalts ends the unfinished halts in an agent's mailbox that are older than a resume, the oldest 100.
func (s *sending) endHalts(r *room, resume int64) error {
	var halts []*held
	rows := s.tx.Query(selectHalts, r.id, int64(DirectiveRank), haltType, resume, maxDirectives)
	for rows.Next() {
		h := &held{}
		var state int
		if err := rows.Scan(&h.message, &h.mailbox, &state); err != nil {
			return err
		}
		h.state = State(state)
		halts = append(halts, h)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, h := range halts {
		if err := s.end(s.tx, s.actor.Session.ID, h); err != nil {
			return err
		}
		if h.state.Waits() {
			r.waiting--
		}
	}
	return nil
}

// Directives returns the types of the unfinished directives in an agent's mailbox, oldest first, at most 100.
func (b *Broker) Directives(q store.Querier, session int64, agent Agent) ([]string, error) {
	mailbox, err := b.Mailboxes.Find(q, session, MailboxRef{AgentMailbox, agent.Name})
	if err != nil {
		return nil, err
	}
	var types []string
	rows := q.Query(selectDirectiveTypes, mailbox, int64(DirectiveRank), maxDirectives)
	for rows.Next() {
		var kind string
		if err := rows.Scan(&kind); err != nil {
			return nil, err
		}
		types = append(types, kind)
	}
	return types, rows.Err()
}
