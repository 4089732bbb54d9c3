package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// locksAndTurns shows locks by path, then tokens by name, each with the requests that wait for it.
var locksAndTurns = view{
	title: "Locks and turns", short: "Locks", question: "Who blocks whom?", none: "no agent holds a lock or a token",
	columns: []table.Column{
		{Name: "WHAT", Min: 20}, {Name: "STATE", State: true}, {Name: "AGENT", Min: 10}, {Name: "SINCE"},
		{Name: "UNTIL", Rank: 1},
		{Name: "WAITING", Rank: 2}, {Name: "REASON", Rank: 3, Min: 12}, {Name: "REVISION", Rank: 4},
	},
	load: func(ctx context.Context, broker *client.Client) (any, error) {
		locks, err := broker.Locks().ListLocks(ctx, &pb.ListLocksRequest{PageSize: 1000})
		if err != nil {
			return nil, err
		}
		held := heldThings{locks: locks}
		for _, state := range []pb.TokenState{pb.TokenState_TOKEN_STATE_CONTESTED, pb.TokenState_TOKEN_STATE_HELD} {
			tokens, err := broker.Tokens().ListTokens(ctx, &pb.ListTokensRequest{State: state, PageSize: 500})
			if err != nil {
				return nil, err
			}
			for i, t := range tokens.GetTokens() {
				token := &pb.GetTokenResponse{Token: t}
				if i < mostQueues && state == pb.TokenState_TOKEN_STATE_CONTESTED {
					full, err := broker.Tokens().GetToken(ctx,
						&pb.GetTokenRequest{Type: t.GetType(), Scope: t.GetScope()})
					if err != nil {
						return nil, err
					}
					token = full
				}
				held.tokens = append(held.tokens, token)
			}
		}
		return held, nil
	},
	rows: func(s snapshot) []row {
		held, _ := s.data.(heldThings)
		tickets := held.locks.GetTickets()
		var locks, tokens []row
		for _, l := range held.locks.GetLocks() {
			r := row{key: fmt.Sprint("lock ", l.GetFence()), item: l, cells: []cell{
				text(strings.Join(l.GetPaths(), " ")), held.state(l.GetWaiting(), l.GetUncollected(), l.GetMode()),
				owner(l.GetAgent(), l.GetHolder()),
				s.ago(l.GetGrantedAt()), s.ago(l.GetHeldUntil()), number(l.GetWaiting()), text(l.GetReason()),
				number(l.GetFence()),
			}}
			for _, t := range tickets {
				if first := t.GetObstacles(); len(first) > 0 && first[0].GetRevision() == l.GetFence() {
					r.under = append(r.under, ticketRow(s, t))
				}
			}
			locks = append(locks, r)
		}
		for _, t := range tickets { // those that wait for another ticket alone
			if first := t.GetObstacles(); len(first) == 0 || first[0].GetWaiting() {
				locks = append(locks, ticketRow(s, t))
			}
		}
		for _, full := range held.tokens {
			t := full.GetToken()
			r := row{key: "token " + t.GetType() + "/" + t.GetScope(), item: t, cells: []cell{
				text("token " + t.GetType() + "/" + t.GetScope()), held.state(t.GetWaiting(), t.GetUncollected(), 0),
				owner(cmp.Or(t.GetAgent(), "role "+t.GetPassedToRole()), t.GetHolder()), s.ago(t.GetGrantedAt()),
				s.ago(t.GetHeldUntil()),
				number(t.GetWaiting()), text(t.GetReason()), number(t.GetFence()),
			}}
			for _, ticket := range full.GetTickets() {
				r.under = append(r.under, row{key: fmt.Sprint("ticket ", ticket.GetTicket()),
					item: &pb.GetTokenResponse{Token: t, Tickets: []*pb.TokenTicket{ticket}},
					cells: []cell{
						text(fmt.Sprintf("%d. in the queue", ticket.GetPosition())), text("waits"),
						owner(ticket.GetAgent(), ticket.GetHolder()),
						s.ago(ticket.GetCreatedAt()), text(""), text(""), text(ticket.GetReason()),
						number(ticket.GetTicket()),
					}})
			}
			tokens = append(tokens, r)
		}
		byName := func(a, b row) int { return cmp.Compare(a.cells[0].text, b.cells[0].text) }
		slices.SortStableFunc(locks, byName)
		slices.SortStableFunc(tokens, byName)
		return append(locks, tokens...)
	},
	open: func(ctx context.Context, o opening, r row) ([]section, error) {
		var request *pb.ExplainRequest
		switch item := r.item.(type) {
		case *pb.Lock:
			request = &pb.ExplainRequest{Subject: &pb.ExplainRequest_Lock{Lock: fmt.Sprint(item.GetFence())}}
		case *pb.LockTicket:
			request = &pb.ExplainRequest{Subject: &pb.ExplainRequest_Lock{Lock: fmt.Sprint(item.GetTicket())}}
		case *pb.GetTokenResponse:
			return []section{{title: r.key, message: item.GetTickets()[0]}, {title: "token", message: item.GetToken()}}, nil
		case *pb.Token:
			request = &pb.ExplainRequest{Subject: &pb.ExplainRequest_Token{Token: item.GetType() + "/" +
				item.GetScope()}}
		}
		why, err := o.explained(ctx, request)
		return append(why, section{title: r.key, message: r.item}), err
	},
	actions: func(rows []row, _ func(*pb.Call) string) []action {
		if len(rows) != 1 {
			return nil
		}
		what := rows[0].name() + " of " + rows[0].cells[2].text
		switch item := rows[0].item.(type) {
		case *pb.Lock:
			return []action{
				forceRelease("force release", "Take the lock "+what,
					&pb.ForceReleaseLocksRequest{Revisions: []int64{item.GetFence()}}),
				forceRelease("force release all of "+item.GetAgent(),
					"Take all locks of "+item.GetAgent()+", and end its requests for locks",
					&pb.ForceReleaseLocksRequest{Agent: item.GetAgent()}),
			}
		case *pb.LockTicket:
			return []action{endWait(item.GetAgent(), strings.Join(item.GetPaths(), " "),
				&pb.ForceReleaseLocksRequest{Revisions: []int64{item.GetTicket()}})}
		case *pb.GetTokenResponse:
			token, ticket := item.GetToken(), item.GetTickets()[0]
			return []action{endWait(ticket.GetAgent(), "the token "+token.GetType()+"/"+token.GetScope(),
				&pb.RevokeTokenRequest{Type: token.GetType(), Scope: token.GetScope(), Ticket: ticket.GetTicket()})}
		case *pb.Token:
			return []action{{
				label: "revoke", effect: "Revoke the " + what, fields: []field{{name: "reason", required: true}},
				run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
					r, err := broker.Tokens().RevokeToken(ctx,
						&pb.RevokeTokenRequest{Type: item.GetType(), Scope: item.GetScope(), Reason: v["reason"]})
					return "revoked; it was held by " + r.GetAgent(), err
				},
			}}
		}
		return nil
	},
}

// mostQueues is for how many contested tokens the view reads the queue.
const mostQueues = 20

// heldThings are the locks and tokens of a session.
type heldThings struct {
	locks  *pb.ListLocksResponse
	tokens []*pb.GetTokenResponse
}

// state says in one word what a holder should know.
func (heldThings) state(waiting int32, uncollected bool, mode pb.LockMode) cell {
	switch {
	case waiting > 0:
		return text("contested")
	case uncollected:
		return text("uncollected")
	case mode == pb.LockMode_LOCK_MODE_SHARED:
		return text("shared")
	}
	return text("held")
}

func owner(agent, holder string) cell {
	return text(agent + prompt.Either(holder != "", " ("+holder+")", ""))
}

func ticketRow(s snapshot, t *pb.LockTicket) row {
	return row{key: fmt.Sprint("ticket ", t.GetTicket()), item: t, cells: []cell{
		text(fmt.Sprintf("%d. %s", t.GetPosition(), strings.Join(t.GetPaths(), " "))), text("waits"),
		owner(t.GetAgent(), t.GetHolder()),
		s.ago(t.GetCreatedAt()), text(""), text(""), text(t.GetReason()), number(t.GetTicket()),
	}}
}

// endWait ends the wait of an agent for a lock or a token.
func endWait(agent, what string, request proto.Message) action {
	return action{
		label: "end the wait", effect: "End the wait of " + agent + " for " + what,
		fields: []field{{name: "reason", required: true}}, run: makes(request, agent+" no longer waits"),
	}
}

func forceRelease(label, effect string, request *pb.ForceReleaseLocksRequest) action {
	return action{
		label: label, effect: effect, fields: []field{{name: "reason", required: true}},
		run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
			request.Reason = v["reason"]
			r, err := broker.Locks().ForceReleaseLocks(ctx, request)
			return "released " + prompt.Count(int64(len(r.GetReleased())), "lock"), err
		},
	}
}
