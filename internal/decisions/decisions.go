package decisions

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// TokenType is the type of the tokens that reviews pass.
const TokenType = "producer_critic"

// The verdicts with a special meaning.
const (
	revise    = "revise" // asks for another round
	deferring = "defer"  // names a time
)

const (
	review   = pb.DecisionKind_DECISION_KIND_REVIEW
	plan     = pb.DecisionKind_DECISION_KIND_PLAN
	shutdown = pb.DecisionKind_DECISION_KIND_SHUTDOWN
	custom   = pb.DecisionKind_DECISION_KIND_CUSTOM
)

const (
	open      = pb.DecisionState_DECISION_STATE_OPEN
	revising  = pb.DecisionState_DECISION_STATE_REVISING
	escalated = pb.DecisionState_DECISION_STATE_ESCALATED
	decided   = pb.DecisionState_DECISION_STATE_DECIDED
	cancelled = pb.DecisionState_DECISION_STATE_CANCELLED
)

// A form is what the decisions of one kind have in common; the zero value is that of custom ones.
type form struct {
	verdicts []string
	request  string // type of the message that asks for a verdict
	outcome  string // type of the notices of verdicts; that of a review depends on the verdict
}

var forms = map[pb.DecisionKind]form{
	review:   {[]string{"approve", revise, "reject"}, "submit_for_review", ""},
	plan:     {[]string{"approve", revise, "reject"}, "plan_submission", "plan_approval"},
	shutdown: {[]string{"accept", deferring, "reject"}, "shutdown_request", "shutdown_response"},
}

// kind is what the table knows of decisions. Each round adds its verdict as a part.
var kind = work.Kind[*pb.Decision]{
	Number:     work.Decisions,
	Noun:       "decision",
	Letter:     "d",
	Final:      []protoreflect.EnumNumber{decided.Number(), cancelled.Number()},
	PartFields: []protoreflect.Name{"content", "rounds"},
	Title:      subject,
	Columns: func(d *pb.Decision) work.Columns {
		c := work.Columns{
			State: d.State.Number(), Opener: d.Opener, Agent: d.Agent, Role: d.Role, Task: d.TaskId, Scope: d.Scope,
		}
		switch d.State {
		case open:
			c.Due = work.Time(d.Deadline)
		case decided, cancelled:
			c.Finished = work.Time(d.ChangedAt)
		}
		return c
	},
	Check: check,
}

// check returns what is wrong with a decision, for CheckDatabase.
func check(d *pb.Decision, _ []work.Part) (problems []string) {
	var last *pb.Verdict
	given := map[int32]bool{} // the rounds with a verdict
	for _, v := range d.Rounds {
		given[v.Round] = true
		last = v
	}
	for round := int32(1); round < d.Round; round++ {
		if !given[round] {
			problems = append(problems, fmt.Sprintf("round %d has no verdict, and is not the current one", round))
		}
		delete(given, round)
	}
	current := given[d.Round]
	delete(given, d.Round)
	switch {
	case len(given) > 0:
		problems = append(problems, "a round after the current one has a verdict")
	case (d.State == revising || d.State == decided) && !current:
		problems = append(problems, "it is decided or revising without a verdict of the round")
	case d.State == open && current:
		problems = append(problems, "it is open with a verdict of the round")
	case d.State == decided && last.GetVerdict() != d.Verdict, d.State != decided && d.Verdict != "":
		problems = append(problems, "its final verdict is not that of the last round")
	}
	return problems
}

// Checks returns the checks of the decisions in a database; see work.Kind.
func Checks(most int) []func(q store.Querier) ([]string, error) { return kind.Checks(most) }

// Tokens passes the tokens of reviews.
type Tokens interface {
	// Hand passes a token on in the transaction of a change. It reports whether it has passed it: false
	// if neither the grant exists nor the agent holds the token. fence is that of the new grant, 0 if
	// the receiver has none.
	Hand(tx *store.Tx, session int64, p work.TokenPass) (fence int64, passed bool, err error)
}

// A Crew knows the health of agents.
type Crew interface {
	// Condition describes an agent in a sentence, and reports whether it is well.
	Condition(q store.Querier, about finding.Question, agent string) (says string, well bool, err error)
}

// A Service keeps the decisions of all sessions and serves the DecisionService of the API. Its methods may
// be called concurrently.
type Service struct {
	pb.UnimplementedDecisionServiceServer
	*work.Table[*pb.Decision]
	tokens Tokens
	crew   Crew
}

// New returns the decisions of a store that was opened with Migrations. They do nothing by themselves
// before Start.
func New(d *work.Desk, tokens Tokens, crew Crew) *Service {
	s := &Service{tokens: tokens, crew: crew}
	k := kind
	k.Due, k.Chore = s.due, s.chore
	s.Table = work.NewTable(d, k)
	return s
}

// find returns a decision of a session with its content and its newest verdict.
func (s *Service) find(q store.Querier, session int64, id string) (*pb.Decision, error) {
	d, err := s.Head(q, session, id)
	if err != nil {
		return nil, err
	}
	return d, s.complete(q, d)
}

// complete adds the content and the newest verdict to a decision that lacks its PartFields.
func (s *Service) complete(q store.Querier, d *pb.Decision) error {
	content, found, err := s.Part(q, s.Key(d), "content")
	if err == nil && found {
		err = s.Merge(d, content)
	}
	if err != nil {
		return err
	}
	return s.addLast(q, d)
}

// addLast adds the newest verdict to a decision that lacks its rounds.
func (s *Service) addLast(q store.Querier, d *pb.Decision) error {
	p, found, err := s.LastPart(q, s.Key(d), "rounds")
	if err != nil || !found {
		return err
	}
	return s.Merge(d, p)
}

// verdictPart is the name of the part that has a verdict. A round may have one more once it has escalated.
func verdictPart(v *pb.Verdict) string {
	after := 0
	if v.Escalated {
		after = 1
	}
	return fmt.Sprintf("rounds-%09d-%d", v.Round, after)
}

// addVerdict adds a verdict, with the revision of the decision.
func (s *Service) addVerdict(t *work.Tx, d *pb.Decision, v *pb.Verdict) error {
	v.Revision = d.Revision
	d.Rounds = append(d.Rounds, v)
	return s.PutPart(t, d, verdictPart(v), &pb.Decision{Rounds: []*pb.Verdict{v}})
}

// last returns the newest verdict, nil if there is none.
func last(d *pb.Decision) *pb.Verdict {
	if len(d.Rounds) == 0 {
		return nil
	}
	return d.Rounds[len(d.Rounds)-1]
}

// waits reports whether a verdict is due.
func waits(d *pb.Decision) bool { return d.State == open || d.State == escalated }

// about names the decision in a sentence.
func about(d *pb.Decision) string {
	if d.Scope != "" {
		return work.Word(d.Kind) + " " + finding.Clip(d.Scope)
	}
	return work.Word(d.Kind) + " " + d.Id
}

// subject is the title with the kind and the round.
func subject(d *pb.Decision) string {
	says := work.Word(d.Kind) + ": " + d.Title
	if d.Round > 1 {
		says += fmt.Sprintf(" (round %d of %d)", d.Round, d.MaxRounds)
	}
	return says
}

// addressee names the agent or role that decides.
func addressee(d *pb.Decision) string {
	if d.Agent != "" {
		return d.Agent
	}
	return "role:" + d.Role
}

// mayDecide reports whether an agent may give the verdict that is due.
func mayDecide(d *pb.Decision, a directory.Agent, s directory.Session) bool {
	if d.State == escalated && a.System() {
		return true
	}
	if !waits(d) || a.Name == d.Opener {
		return false
	}
	if roles := s.Settings.GetEscalateTo().GetNames(); d.State == escalated && len(roles) > 0 {
		return slices.Contains(roles, a.Role)
	}
	return a.Name == d.Agent || d.Role != "" && a.Role == d.Role
}

// deciders says which agents may decide.
func deciders(d *pb.Decision, s directory.Session) string {
	roles := s.Settings.GetEscalateTo().GetNames()
	switch {
	case d.State == escalated && len(roles) > 0:
		return "it has escalated; an operator or an agent of the roles " + strings.Join(roles, ", ") + " decides"
	case d.Agent != "":
		return "only " + d.Agent + " may decide"
	}
	return fmt.Sprintf("only agents of the role %s may decide, other than %s, who opened it", d.Role, d.Opener)
}

// owedBy reports whether the decision waits for an agent.
func owedBy(d *pb.Decision, a directory.Agent, s directory.Session) bool {
	return mayDecide(d, a, s) || d.State == revising && d.Opener == a.Name
}

// mayPass reports whether the decision is one that may pass a token.
func mayPass(kind pb.DecisionKind, scope string) bool { return kind == review && scope != "" }
