package locks

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

const (
	// longWait is the time after which a waiting request is a warning.
	longWait = 5 * time.Minute
	// longUncollected is the time after which a token that its new owner has not collected is a
	// warning, if other requests wait.
	longUncollected = 30 * time.Second
	// mostExplained limits the grants, and the tickets, of one answer.
	mostExplained = 20
)

// A Crew knows the health of agents.
type Crew interface {
	// Condition describes an agent in a sentence, and reports whether it is well: neither failed
	// nor late, and not kept from work.
	Condition(q store.Querier, about finding.Question, agent string) (says string, well bool, err error)
}

// UseCrew sets the source of the agents' health. Call it before the table is used.
func (t *Table) UseCrew(c Crew) { t.crew = c }

// Explain says which agents hold and which wait for a path, a fence, a ticket or a token, or what
// an agent holds and waits for; without a subject, it finds the locks and tokens that others have
// waited for for too long. Errors: fault.Invalid for a text that is no path, fault.NotFound for a
// number that is no fence or ticket.
func (t *Table) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	if about.Kind == finding.Message || about.Kind == finding.Role {
		return nil, nil
	}
	v, err := t.view(q, about.Session)
	if err != nil {
		return nil, err
	}
	e := explanation{Table: t, view: v, about: about, told: map[int64]bool{}}
	switch about.Kind {
	case finding.Lock:
		err = e.lock()
	case finding.Token:
		err = e.token()
	case finding.Agent:
		err = e.agent()
	case finding.Everything:
		err = e.contested()
	}
	if err != nil {
		return nil, fmt.Errorf("explain locks: %w", err)
	}
	return e.found, nil
}

// An explanation gathers the findings of one answer.
type explanation struct {
	*Table
	view
	about finding.Question
	found []finding.Finding
	told  map[int64]bool // grants
}

// lock explains the grants and tickets of a path, or one fence or ticket.
func (e *explanation) lock() error {
	if number, err := strconv.ParseInt(e.about.Name, 10, 64); err == nil {
		return e.number(number)
	}
	session, err := e.dir.Session(e.q, e.about.SessionName)
	if err != nil {
		return err
	}
	path, err := Parse(e.about.Name, session.Settings.GetFoldCase())
	if err != nil {
		return fault.Field("lock", "%s", err.Error())
	}
	c := pathsClaim(Exclusive, []Path{path})
	if err := e.all(&c); err != nil || len(e.found) > 0 {
		return err
	}
	e.found = append(e.found, finding.Finding{Severity: finding.Info, Subject: "lock " + path.String(),
		Summary: "it is free: no agent holds it or waits for it",
		Calls:   []calls.Call{calls.Do(&pb.ListLocksRequest{})}})
	return nil
}

// all explains the grants and tickets that conflict with a claim.
func (e *explanation) all(c *claim) error {
	nobody := Owner{Agent: "\n"} // no name; what was passed to a role has an empty one
	held, err := e.holders(c, nobody, mostExplained)
	if err != nil {
		return err
	}
	for _, h := range held {
		if err := e.fence(h.fence); err != nil {
			return err
		}
	}
	n := 0
	for _, k := range e.queue.tickets {
		if n == mostExplained {
			break
		}
		if k.claim.conflicts(c) {
			n++
			if err := e.ticket(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// number explains one fence or ticket.
func (e *explanation) number(number int64) error {
	if k := e.queue.find(number); k != nil {
		return e.ticket(k)
	}
	g, err := findGrant(e.q, selectGrant, number)
	if g == nil && err == nil {
		g, err = findGrant(e.q, selectGrantedOf, e.session, number) // a ticket that became a grant
	}
	if err != nil {
		return err
	}
	if g == nil || g.session != e.about.Session {
		return fault.Missing("lock", e.about.Name, "no lock has the fence %s, and no waiting request has this ticket: "+
			"it was released, has ended or never existed", e.about.Name)
	}
	return e.grant(g)
}

// token explains which agent holds a token and which wait for it.
func (e *explanation) token() error {
	c := claim{kind: Token, mode: Exclusive, token: e.about.Name}
	if err := e.all(&c); err != nil || len(e.found) > 0 {
		return err
	}
	row, err := findToken(e.q, e.session, e.about.Name)
	if err != nil || row == nil {
		return err
	}
	kind, scope, _ := strings.Cut(row.name, "/")
	e.found = append(e.found, finding.Finding{Severity: finding.Info, Subject: subject(&c),
		Summary: "it is available: no agent holds it or waits for it",
		Calls:   []calls.Call{calls.Do(&pb.GetTokenRequest{Type: kind, Scope: scope})}})
	return nil
}

// agent explains what an agent holds and waits for.
func (e *explanation) agent() error {
	held, err := readGrants(e.q.Query(selectSomeOfAgent, e.session, e.about.Name, mostExplained))
	if err != nil {
		return err
	}
	for _, g := range held {
		if err := e.grant(g); err != nil {
			return err
		}
	}
	n := 0
	for _, k := range e.queue.tickets {
		if k.owner.Agent == e.about.Name && n < mostExplained {
			n++
			if err := e.ticket(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// contested explains the locks and tokens that other agents have waited for for too long.
func (e *explanation) contested() error {
	var passed []int64
	rows := e.q.Query(selectUncollected, e.session, e.about.Now.Add(-longUncollected), mostExplained)
	for rows.Next() {
		var fence int64
		if err := rows.Scan(&fence); err != nil {
			return err
		}
		passed = append(passed, fence)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, fence := range passed {
		if err := e.fence(fence); err != nil {
			return err
		}
	}
	// An uncollected token that no request waits for becomes available by itself.
	e.found = slices.DeleteFunc(e.found, func(f finding.Finding) bool { return f.Severity == finding.Info })
	for _, k := range e.queue.tickets {
		if len(e.found) >= 2*mostExplained {
			return nil
		}
		if e.about.Now.Sub(k.createdAt) < longWait {
			continue
		}
		held, err := e.holders(&k.claim, k.owner, mostExplained)
		if err != nil {
			return err
		}
		for _, h := range held {
			if err := e.fence(h.fence); err != nil {
				return err
			}
		}
	}
	return nil
}

// fence explains a grant, once.
func (e *explanation) fence(fence int64) error {
	g, err := findGrant(e.q, selectGrant, fence)
	if err != nil || g == nil {
		return err
	}
	return e.grant(g)
}

// grant explains a grant.
func (e *explanation) grant(g *grant) error {
	if e.told[g.fence] {
		return nil
	}
	e.told[g.fence] = true
	f := finding.Finding{Severity: finding.Info, Subject: subject(&g.claim), Since: g.grantedAt}
	who, ask := g.owner.String(), finding.Explain(finding.Agent, g.owner.Agent)
	if g.owner.Agent == "" {
		who, ask = "the role "+g.role, finding.Explain(finding.Role, g.role)
	}
	f.Summary = fmt.Sprintf("%s holds it%s until %s at the latest, with fence %d", who, shared(g.claim.mode),
		e.about.When(g.until(e.ends)), g.fence)
	if g.reason != "" {
		f.Reasons = append(f.Reasons, "its reason: "+finding.Clip(g.reason))
	}
	if err := e.passing(&f, g, who); err != nil {
		return err
	}
	var waiting []*ticket
	for _, k := range e.queue.tickets {
		if k.owner != g.owner && k.claim.conflicts(&g.claim) {
			waiting = append(waiting, k)
		}
	}
	says, well, err := e.condition(g.owner.Agent)
	if err != nil {
		return err
	}
	f.Reasons = append(f.Reasons, says...)
	if len(waiting) > 0 {
		waits := e.about.Now.Sub(waiting[0].createdAt)
		f.Summary += "; " + finding.Count(len(waiting), "request") + " " + verb(len(waiting)) + " for it, the first for " +
			finding.Rough(waits) + finding.After(longWait)
		if !well || waits >= longWait || !g.collected && e.about.Now.Sub(g.grantedAt) >= longUncollected {
			f.Severity = finding.Warning
		}
	}
	for _, k := range waiting[:min(len(waiting), mostExplained)] {
		f.Reasons = append(f.Reasons, k.says(&e.about))
	}
	if f.Severity == finding.Info {
		f.Calls = append(f.Calls, ask, g.revoking())
	} else {
		f.Calls = append(f.Calls, g.revoking(), ask)
	}
	e.found = append(e.found, f)
	return nil
}

// passing says which agent passed a grant on, and whether the new owner has collected it.
func (e *explanation) passing(f *finding.Finding, g *grant, who string) error {
	if g.claim.kind == Token {
		row, err := findToken(e.q, e.session, g.claim.token)
		if err != nil {
			return err
		}
		if row != nil && row.passed == g.fence && row.passedBy != "" {
			says := row.passedBy + " passed it to " + who
			if row.note != "" {
				says += ": " + finding.Clip(row.note)
			}
			f.Reasons = append(f.Reasons, says)
		}
	}
	if g.collected {
		return nil
	}
	says := who + " has not collected it" + finding.After(longUncollected)
	if at, ok := e.ends.Deadline(alarm{collectAlarm, g.fence}); ok {
		says += "; its right to it ends at " + e.about.When(at)
	}
	f.Reasons = append(f.Reasons, says)
	return nil
}

// verb agrees with a number of requests.
func verb(n int) string {
	if n == 1 {
		return "waits"
	}
	return "wait"
}

// says which agent waits, and since when.
func (k *ticket) says(about *finding.Question) string {
	says := fmt.Sprintf("%s waits%s since %s, ticket %d", k.owner, shared(k.claim.mode), about.When(k.createdAt), k.number)
	if k.kept {
		says += " (kept)"
	}
	if k.reason != "" {
		says += ": " + finding.Clip(k.reason)
	}
	return says
}

// ticket explains a request that waits.
func (e *explanation) ticket(k *ticket) error {
	obstacles, position, err := e.obstacles(&k.claim, k.owner, k.place)
	if err != nil {
		return err
	}
	f := finding.Finding{Severity: finding.Info, Subject: subject(&k.claim), Since: k.createdAt}
	f.Summary = fmt.Sprintf("%s waits for it%s behind %s, with ticket %d%s", k.owner, shared(k.claim.mode),
		finding.Count(position, "owner"), k.number,
		finding.After(longWait))
	if k.reason != "" {
		f.Reasons = append(f.Reasons, "its reason: "+finding.Clip(k.reason))
	}
	if k.kept {
		f.Reasons = append(f.Reasons, "its ticket is kept: after the grant, it has 2 min to collect it")
	}
	if e.about.Now.Sub(k.createdAt) >= longWait {
		f.Severity = finding.Warning
	}
	asked := map[string]bool{}
	for _, o := range obstacles {
		if o.Waiting {
			f.Reasons = append(f.Reasons, fmt.Sprintf("%s waits before it for %s, with ticket %d", o.Owner, o.Resource,
				o.Revision))
			continue
		}
		g, err := findGrant(e.q, selectGrant, o.Revision)
		if err != nil {
			return err
		}
		who := o.Owner.String()
		if o.Owner.Agent == "" {
			who = "the role " + g.role
		}
		f.Reasons = append(f.Reasons, fmt.Sprintf("%s holds %s%s until %s at the latest, with fence %d", who, o.Resource,
			shared(o.Mode), e.about.When(g.until(e.ends)), o.Revision))
		if !asked[o.Owner.Agent] {
			asked[o.Owner.Agent] = true
			says, well, err := e.condition(o.Owner.Agent)
			if err != nil {
				return err
			}
			f.Reasons = append(f.Reasons, says...)
			if !well {
				f.Severity = finding.Warning
			}
		}
		f.Calls = append(f.Calls, g.revoking())
	}
	f.Calls = append(f.Calls, k.giveUp())
	e.found = append(e.found, f)
	return nil
}

// condition describes an agent.
func (e *explanation) condition(agent string) (says []string, well bool, err error) {
	if e.crew == nil || agent == "" {
		return nil, true, nil
	}
	s, well, err := e.crew.Condition(e.q, e.about, agent)
	if s != "" {
		says = append(says, s)
	}
	return says, well, err
}

// revoking is the call that takes a grant from its owner.
func (g *grant) revoking() calls.Call {
	const why = "an operator needs it"
	if g.claim.kind == Token {
		kind, scope, _ := strings.Cut(g.claim.token, "/")
		return calls.Do(&pb.RevokeTokenRequest{Type: kind, Scope: scope, Reason: why})
	}
	return calls.Do(&pb.ForceReleaseLocksRequest{Revisions: []int64{g.fence}, Reason: why})
}

// giveUp is the call that releases a ticket.
func (k *ticket) giveUp() calls.Call {
	if k.claim.kind == Token {
		kind, scope, _ := strings.Cut(k.claim.token, "/")
		return calls.Do(&pb.ReleaseTokenRequest{Type: kind, Scope: scope, Holder: k.owner.Holder}).As(k.owner.Agent)
	}
	return calls.Do(&pb.ReleaseLocksRequest{Fences: []int64{k.number}, Tickets: []int64{k.number}}).As(k.owner.Agent)
}

// subject names a claim in a finding.
func subject(c *claim) string { return c.kind.noun() + " " + c.title() }

// shared names a mode that is not exclusive.
func shared(m Mode) string {
	if m == Shared {
		return " (shared)"
	}
	return ""
}

// A Tally counts the grants and tickets of a session.
type Tally struct{ Locks, Tokens, Tickets int64 }

// Count counts the grants and tickets of a session.
func Count(q store.Querier, session int64) (Tally, error) {
	var n Tally
	var grants int64
	err := q.QueryRow(countAll, session).Scan(&grants, &n.Tokens, &n.Tickets)
	n.Locks = grants - n.Tokens
	return n, err
}

// Owners counts the locks and tokens of each agent of a session that holds some.
func Owners(q store.Querier, session int64) (map[string]int64, error) {
	held := map[string]int64{}
	rows := q.Query(countOwned, session)
	for rows.Next() {
		var agent string
		var n int64
		if err := rows.Scan(&agent, &n); err != nil {
			return nil, err
		}
		held[agent] = n
	}
	return held, rows.Err()
}
