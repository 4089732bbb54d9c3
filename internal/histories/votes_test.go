package histories_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// A pollsClient votes, changes its ballots and closes votes that all clients share.
type pollsClient struct {
	*client
	stub pb.VoteServiceClient
	made int           // calls
	ids  [polls]string // of the votes, once they are known
}

func newPollsClient(c *client) func() error {
	p := &pollsClient{client: c, stub: pb.NewVoteServiceClient(c.daemon.conn)}
	return p.next
}

func pollName(poll int) string { return fmt.Sprintf("poll-%d", poll) }

// next makes one call, of any kind. All clients work on the votes in the same order, at about the same
// time.
func (p *pollsClient) next() error {
	if p.made == 0 {
		if err := p.open(); err != nil {
			return err
		}
	}
	poll := min(p.made*polls/calls+p.random.IntN(3), polls-1)
	p.made++
	if err := p.find(poll); err != nil {
		return err
	}
	call := pollCall{poll: poll, client: p.number}
	switch n := p.random.IntN(100); {
	case n < 65:
		call.verb, call.choice = castBallot, int8(1+p.random.IntN(choices))
		if p.random.IntN(2) == 0 {
			call.choice = 1 // or hardly any option would win
		}
		return p.cast(call)
	case n < 75 && poll%clients == p.number:
		call.verb = closePoll
		return p.closePoll(call)
	default:
		call.verb = getPoll
		return p.get(call)
	}
}

// open opens the votes of this client.
func (p *pollsClient) open() error {
	for poll := p.number; poll < polls; poll += clients {
		in := &pb.OpenVoteRequest{RequestId: newID(), Title: pollName(poll), Options: []string{"1", "2", "3"}, Rule: ruleOf(poll),
			Quorum: &pb.Quorum{Quorum: &pb.Quorum_Share{Share: float64(quorumOf(poll)) / clients}}}
		_, _, _, err := p.call(true, func(ctx context.Context) error {
			_, err := p.stub.OpenVote(ctx, in)
			return err
		})
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
	}
	return nil
}

// find waits until a vote is open, and notes its id.
func (p *pollsClient) find(poll int) error {
	for p.ids[poll] == "" {
		var out *pb.ListVotesResponse
		_, _, _, err := p.call(true, func(ctx context.Context) (err error) {
			out, err = p.stub.ListVotes(ctx, &pb.ListVotesRequest{Opener: agentName(poll % clients)})
			return err
		})
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		for _, v := range out.GetVotes() {
			if v.GetTitle() == pollName(poll) {
				p.ids[poll] = v.GetId()
				return nil
			}
		}
		pause(p.ctx, time.Millisecond)
	}
	return nil
}

func (p *pollsClient) cast(call pollCall) error {
	var out *pb.CastVoteResponse
	from, to, known, err := p.change(func(ctx context.Context, id string) (err error) {
		out, err = p.stub.CastVote(ctx, &pb.CastVoteRequest{RequestId: id, Id: p.ids[call.poll], Option: strconv.Itoa(int(call.choice))})
		return err
	})
	return p.answered(from, to, known, err, call, out.GetVote(), pollAnswer{})
}

func (p *pollsClient) closePoll(call pollCall) error {
	var out *pb.CloseVoteResponse
	from, to, known, err := p.change(func(ctx context.Context, id string) (err error) {
		out, err = p.stub.CloseVote(ctx, &pb.CloseVoteRequest{RequestId: id, Id: p.ids[call.poll]})
		return err
	})
	return p.answered(from, to, known, err, call, out.GetVote(), pollAnswer{already: out.GetAlreadyClosed()})
}

func (p *pollsClient) get(call pollCall) error {
	var out *pb.GetVoteResponse
	from, to, known, err := p.call(true, func(ctx context.Context) (err error) {
		out, err = p.stub.GetVote(ctx, &pb.GetVoteRequest{Id: p.ids[call.poll]})
		return err
	})
	var a pollAnswer
	for i, b := range out.GetBallots() {
		if b.GetAgent() != agentName(i) {
			return errors.New("get: the ballots are not those of the clients, by name")
		}
		choice, _ := strconv.Atoi("0" + b.GetOption())
		a.ballots[i] = int8(choice)
	}
	return p.answered(from, to, known, err, call, out.GetVote(), a)
}

// answered records a call with the vote that its response has.
func (p *pollsClient) answered(from, to int64, known bool, err error, call pollCall, v *pb.Vote, a pollAnswer) error {
	why, _ := reason(err)
	switch {
	case !known && err == nil:
		p.add(from, to, call, nil)
		return nil
	case why == "VOTE_CLOSED":
		p.add(from, to, call, pollAnswer{refused: true})
		return nil
	case err != nil:
		return fmt.Errorf("%+v: %w", call, err)
	}
	a.closed, a.outcome = v.GetState() == pb.VoteState_VOTE_STATE_CLOSED, v.GetOutcome()
	winner, _ := strconv.Atoi("0" + v.GetWinner())
	a.winner = int8(winner)
	for i, t := range v.GetTally() {
		a.tally[i] = int(t.GetBallots())
	}
	p.add(from, to, call, a)
	return nil
}
