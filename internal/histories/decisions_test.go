package histories_test

import (
	"context"
	"fmt"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// A casesClient decides, resubmits and cancels decisions that all clients share.
type casesClient struct {
	*client
	stub pb.DecisionServiceClient
	made int           // calls
	ids  [cases]string // of the decisions, once they are known
}

func newCasesClient(c *client) func() error {
	p := &casesClient{client: c, stub: pb.NewDecisionServiceClient(c.daemon.conn)}
	return p.next
}

func caseName(number int) string { return fmt.Sprintf("case-%d", number) }

// next makes one call, of any kind. All clients work on the decisions in the same order, at about the
// same time.
func (p *casesClient) next() error {
	if p.made == 0 {
		if err := p.open(); err != nil {
			return err
		}
	}
	number := min(p.made*cases/calls+p.random.IntN(2), cases-1)
	p.made++
	if err := p.find(number); err != nil {
		return err
	}
	call := caseCall{number: number, client: p.number}
	n, own := p.random.IntN(100), number%clients == p.number
	switch {
	case n >= 80:
		call.verb = getCase
	case own && n < 70:
		call.verb = resubmitCase
	case own:
		call.verb = cancelCase
	default:
		call.verb, call.verdict = decideCase, "revise"
		if n < 10 {
			call.verdict = "approve"
		}
	}
	return p.ask(call)
}

// open opens the decisions of this client.
func (p *casesClient) open() error {
	for number := p.number; number < cases; number += clients {
		in := &pb.OpenDecisionRequest{RequestId: newID(), Kind: pb.DecisionKind_DECISION_KIND_REVIEW, Title: caseName(number), MaxRounds: 100,
			To: &pb.OpenDecisionRequest_Role{Role: "client"}}
		_, _, _, err := p.call(true, func(ctx context.Context) error {
			_, err := p.stub.OpenDecision(ctx, in)
			return err
		})
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
	}
	return nil
}

// find waits until a decision is open, and notes its id.
func (p *casesClient) find(number int) error {
	for p.ids[number] == "" {
		var out *pb.ListDecisionsResponse
		_, _, _, err := p.call(true, func(ctx context.Context) (err error) {
			out, err = p.stub.ListDecisions(ctx, &pb.ListDecisionsRequest{Opener: agentName(number % clients)})
			return err
		})
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		for _, d := range out.GetDecisions() {
			if d.GetTitle() == caseName(number) {
				p.ids[number] = d.GetId()
				return nil
			}
		}
		pause(p.ctx, time.Millisecond)
	}
	return nil
}

// ask makes a call and records it with its answer.
func (p *casesClient) ask(call caseCall) error {
	var d *pb.Decision
	id := p.ids[call.number]
	request := func(ctx context.Context, requestID string) error {
		switch call.verb {
		case decideCase:
			out, err := p.stub.Decide(ctx, &pb.DecideRequest{RequestId: requestID, Id: id, Verdict: call.verdict})
			d = out.GetDecision()
			return err
		case resubmitCase:
			out, err := p.stub.ResubmitDecision(ctx, &pb.ResubmitDecisionRequest{RequestId: requestID, Id: id})
			d = out.GetDecision()
			return err
		case cancelCase:
			out, err := p.stub.CancelDecision(ctx, &pb.CancelDecisionRequest{RequestId: requestID, Id: id})
			d = out.GetDecision()
			return err
		default:
			out, err := p.stub.GetDecision(ctx, &pb.GetDecisionRequest{Id: id})
			d = out.GetDecision()
			return err
		}
	}
	var from, to int64
	var known bool
	var err error
	if call.verb == getCase {
		from, to, known, err = p.call(true, func(ctx context.Context) error { return request(ctx, "") })
	} else {
		from, to, known, err = p.change(request)
	}
	why, _ := reason(err)
	switch {
	case !known && err == nil:
		p.add(from, to, call, nil)
		return nil
	case why == "DECISION_CLOSED", why == "DECISION_NOT_REVISING":
		p.add(from, to, call, caseAnswer{refused: true})
		return nil
	case err != nil:
		return fmt.Errorf("%+v: %w", call, err)
	}
	a := caseAnswer{state: caseState{state: d.GetState(), round: int(d.GetRound())}}
	if n := len(d.GetRounds()); n > 0 {
		a.state.verdict, a.state.by = d.GetRounds()[n-1].GetVerdict(), d.GetRounds()[n-1].GetDecidedBy()
	}
	p.add(from, to, call, a)
	return nil
}
