package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	pb "brokerd/gen/brokerd/v1"
)

func newAdminCommand(c *cli) *cobra.Command {
	return group("admin", "For operators: look after the database", "", newAdminCheckCommand(c))
}

func newAdminCheckCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Look for damage and broken invariants while the broker runs",
		Long: `Look for damage in the database and for broken invariants, over all sessions, while the broker runs. Exit code 1
if something was found.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Admin().CheckDatabase(cmd.Context(), &pb.CheckDatabaseRequest{})
			if err != nil {
				return err
			}
			err = c.show(cmd, answer, func(w io.Writer) {
				for _, p := range answer.GetProblems() {
					fmt.Fprintln(w, oneLine(p))
				}
				fmt.Fprintf(w, "checked %s, %s and %s up to revision %d: %s\n", count(answer.GetMessages(), "message"),
					count(answer.GetDeliveries(), "delivery"), count(answer.GetEvents(), "event"), answer.GetRevision(), problems(len(answer.GetProblems())))
			})
			if n := len(answer.GetProblems()); err == nil && n > 0 {
				return failf(exitError, "the check found %s", problems(n))
			}
			return err
		},
	}
}

func problems(n int) string {
	if n == 0 {
		return "all is well"
	}
	return count(n, "problem")
}
