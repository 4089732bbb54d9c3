package observe

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// Overview is brokerctl overview.
var Overview = command.Procedure[*pb.WatchOverviewRequest]{
	Page: command.Page{
		Use:   "overview",
		Short: "Show agents, mailboxes, events and rates at a glance (operators)",
		Long: `Show totals and rates, what is stuck, the fullest mailboxes, the agents and the newest
events. With --follow, show them again after each change, at most ten times a second.
-o json shows all of it.`,
		Example: `  brokerctl overview
  brokerctl overview --follow -o json`,
	},
	Options: []command.Option{
		{Name: "follow", Type: "bool", Usage: "show it again after each change"},
		{Field: "all_sessions", Usage: "show every open session"},
	},
	Run: func(g *command.Given, q *pb.WatchOverviewRequest) error {
		c := g.Caller
		q.Once = !g.On("follow")
		ctx, cancel := context.WithCancel(g.Cmd.Context())
		defer cancel()
		broker, err := c.Connect(ctx, c.RetryNotice(g.Cmd))
		if err != nil {
			return err
		}
		first := true
		for frame, err := range broker.FollowOverview(ctx, q) {
			if err != nil {
				return err
			}
			show := func(w io.Writer) {
				if !first {
					output.Apart(w)
				}
				printOverview(c, w, frame)
			}
			if err := c.Show(g.Cmd, frame, show); err != nil {
				return err
			}
			if c.Prompt != nil {
				_ = c.Prompt.Next() // show has written everything
			}
			first = false
		}
		return ctx.Err()
	},
}

// How many rows of each table a screen has.
const (
	overviewBoxes  = 10
	overviewAgents = 20
	overviewEvents = 10
)

// printOverview prints a frame for people.
func printOverview(c *command.Caller, w io.Writer, f *pb.WatchOverviewResponse) {
	totals := f.GetTotals()
	l := c.NewLabels(w)
	absent := table.Absent(totals.GetLateAgents(), totals.GetFailedAgents(), totals.GetStoppedAgents())
	closed := prompt.Either(f.GetClosed(), " (closed)", "")
	l.Line("session", f.GetSession()+closed+": "+prompt.Count(totals.GetAgents(), "agent")+absent)
	if found := f.GetFindings(); len(found) > 0 {
		l.State("stuck", severities(found)+"; see "+c.Command("explain"))
		l.Line("worst", found[0].GetSubject()+": "+found[0].GetSummary())
	} else {
		l.Line("stuck", "nothing")
	}
	if n := totals.GetOperatorMail(); n > 0 {
		l.Line("for operators", prompt.Count(n, "message")+": "+c.Command("inbox --operator"))
	}
	l.Line("messages", fmt.Sprintf("%d waiting, %d claimed, %d dead", totals.GetWaiting(), totals.GetClaimed(),
		totals.GetDead()))
	l.Line("rates", fmt.Sprintf("%.1f sent, %.1f received, %.1f acknowledged a second; %.1f changes in all sessions",
		totals.GetSentRate(), totals.GetReceivedRate(), totals.GetProcessedRate(), totals.GetRevisionRate()))
	l.Line("work", mail.WorkCounts(totals.GetWork()))
	l.Line("shared", fmt.Sprintf("%s, %s held, %d waiting for them; %s", prompt.Count(totals.GetLocks(), "lock"),
		prompt.Count(totals.GetTokensHeld(), "token"), totals.GetTickets(), prompt.Count(totals.GetStateKeys(), "key")))
	l.Line("time", fmt.Sprintf("%s, revision %d", c.When(f.GetTime()), f.GetRevision()))
	l.Flush()
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	print := func(rows int, columns []table.Column, row func(i int) []string) {
		if rows == 0 {
			return
		}
		output.Apart(w)
		t := c.NewTable(w, columns...)
		for i := range rows {
			t.Row(row(i)...)
		}
		_ = t.Flush() // to the command's own output: an error cannot be reported anywhere
	}
	boxes := f.GetMailboxes()
	print(min(len(boxes), overviewBoxes),
		[]table.Column{{Name: "MAILBOX", Min: 16}, {Name: "WAITING"}, {Name: "CLAIMED"}, {Name: "DEAD"}, {Name: "OLDEST"}},
		func(i int) []string {
			m := boxes[i]
			return []string{m.GetMailbox(), number(m.GetWaiting()), number(m.GetClaimed()), prompt.UpTo1000(m.GetDead()),
				c.When(m.GetOldest())}
		})
	agents := f.GetAgents()
	print(min(len(agents), overviewAgents),
		[]table.Column{
			{Name: "AGENT", Min: 16}, {Name: "ROLE", Rank: 3, Min: 8}, {Name: "STATE", State: true},
			{Name: "SILENT SINCE", Rank: 2}, {Name: "CLAIMS"}, {Name: "LOCKS", Rank: 4}, {Name: "WAITING"},
			{Name: "ACTIVITY", Rank: 1, Min: 16},
		},
		func(i int) []string {
			a := agents[i]
			return []string{
				a.GetName(), a.GetRole(), a.GetState() + prompt.Either(a.GetHalted(), ", halted", ""),
				c.When(a.GetSilentSince()),
				number(a.GetClaims()), number(a.GetLocks()), number(a.GetWaiting()), a.GetActivity(),
			}
		})
	events := f.GetEvents()
	print(min(len(events), overviewEvents),
		[]table.Column{
			{Name: "REV"}, {Name: "TIME"}, {Name: "TYPE", Min: 14}, {Name: "SOURCE", Rank: 1, Min: 8},
			{Name: "SUMMARY", Min: 24},
		},
		func(i int) []string {
			e := events[i]
			return []string{number(e.GetRevision()), c.When(e.GetTime()), e.GetType(), e.GetSource(), e.GetSummary()}
		})
}
