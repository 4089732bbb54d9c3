package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"

	pb "brokerd/gen/brokerd/v1"
)

func newOverviewCommand(c *cli) *cobra.Command {
	var following bool
	request := &pb.WatchOverviewRequest{}
	cmd := &cobra.Command{
		Use:   "overview",
		Short: "Show agents, mailboxes, events and rates at a glance (operators)",
		Long: `Show totals and rates, what is stuck, the fullest mailboxes, the agents and the newest
events. With --follow, show them again after each change, at most ten times a second.
-o json shows all of it.`,
		Example: `  brokerctl overview
  brokerctl overview --follow -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request.Once = !following
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			broker, err := c.connect(ctx, c.retryNotice(cmd))
			if err != nil {
				return err
			}
			first := true
			for frame, err := range broker.FollowOverview(ctx, request) {
				if err != nil {
					return err
				}
				show := func(w io.Writer) {
					if !first {
						apart(w)
					}
					c.printOverview(w, frame)
				}
				if err := c.show(cmd, frame, show); err != nil {
					return err
				}
				if c.prompt != nil {
					_ = c.prompt.Next() // show has written everything
				}
				first = false
			}
			return ctx.Err()
		},
	}
	cmd.Flags().BoolVar(&following, "follow", false, "show it again after each change")
	cmd.Flags().BoolVar(&request.AllSessions, "all-sessions", false, "show every open session")
	return cmd
}

// How many rows of each table a screen has.
const (
	overviewBoxes  = 10
	overviewAgents = 20
	overviewEvents = 10
)

// printOverview prints a frame for people.
func (c *cli) printOverview(w io.Writer, f *pb.WatchOverviewResponse) {
	totals := f.GetTotals()
	l := c.newLabels(w)
	absent := table.Absent(totals.GetLateAgents(), totals.GetFailedAgents(), totals.GetStoppedAgents())
	l.line("session", f.GetSession()+prompt.Either(f.GetClosed(), " (closed)", "")+": "+prompt.Count(totals.GetAgents(), "agent")+absent)
	if found := f.GetFindings(); len(found) > 0 {
		l.state("stuck", severities(found)+"; see "+c.command("explain"))
		l.line("worst", found[0].GetSubject()+": "+found[0].GetSummary())
	} else {
		l.line("stuck", "nothing")
	}
	if n := totals.GetOperatorMail(); n > 0 {
		l.line("for operators", prompt.Count(n, "message")+": "+c.command("inbox --operator"))
	}
	l.line("messages", fmt.Sprintf("%d waiting, %d claimed, %d dead", totals.GetWaiting(), totals.GetClaimed(),
		totals.GetDead()))
	l.line("rates", fmt.Sprintf("%.1f sent, %.1f received, %.1f acknowledged a second; %.1f changes in all sessions",
		totals.GetSentRate(), totals.GetReceivedRate(), totals.GetProcessedRate(), totals.GetRevisionRate()))
	l.line("work", workCounts(totals.GetWork()))
	l.line("shared", fmt.Sprintf("%s, %s held, %d waiting for them; %s", prompt.Count(totals.GetLocks(), "lock"),
		prompt.Count(totals.GetTokensHeld(), "token"), totals.GetTickets(), prompt.Count(totals.GetStateKeys(), "key")))
	l.line("time", fmt.Sprintf("%s, revision %d", c.when(f.GetTime()), f.GetRevision()))
	l.flush()
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	print := func(rows int, columns []table.Column, row func(i int) []string) {
		if rows == 0 {
			return
		}
		apart(w)
		t := c.newTable(w, columns...)
		for i := range rows {
			t.row(row(i)...)
		}
		_ = t.flush() // to the command's own output: an error cannot be reported anywhere
	}
	boxes := f.GetMailboxes()
	print(min(len(boxes), overviewBoxes),
		[]table.Column{{Name: "MAILBOX", Min: 16}, {Name: "WAITING"}, {Name: "CLAIMED"}, {Name: "DEAD"}, {Name: "OLDEST"}},
		func(i int) []string {
			m := boxes[i]
			return []string{m.GetMailbox(), number(m.GetWaiting()), number(m.GetClaimed()), prompt.UpTo1000(m.GetDead()),
				c.when(m.GetOldest())}
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
				c.when(a.GetSilentSince()),
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
			return []string{number(e.GetRevision()), c.when(e.GetTime()), e.GetType(), e.GetSource(), e.GetSummary()}
		})
}
