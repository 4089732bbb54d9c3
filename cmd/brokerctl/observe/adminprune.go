package observe

import (
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

func newAdminPruneCommand(c *command.Caller) *cobra.Command {
	var olderThan time.Duration
	var kinds []string
	var dryRun bool
	known := strings.Split(strings.ReplaceAll(strings.Join(jsonform.EnumNames(pb.DataKind(0).Descriptor()), ","), "_", "-"), ",")
	cmd := &cobra.Command{
		Use:   "prune --older-than TIME",
		Short: "Archive and remove finished data now",
		Long: `Archive and remove finished data that is older than a time now, instead of after its
retention: in all sessions, or in the one of --session. Unfinished data stays. Dead
letters stay unless --kind names them.`,
		Example: `  brokerctl admin prune --older-than 24h --dry-run
  brokerctl admin prune --older-than 7d --kind dead-letters --session website`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in := &pb.PruneDataRequest{OlderThan: durationpb.New(olderThan), Session: c.Global.Session, DryRun: dryRun}
			for _, name := range kinds {
				kind, err := output.ParseEnum("kind", pb.DataKind(0).Descriptor(), strings.ReplaceAll(name, "-", "_"))
				if err != nil {
					return err
				}
				in.Kinds = append(in.Kinds, pb.DataKind(kind))
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Admin().PruneData(cmd.Context(), in)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "%s %s, %s, %s and %s; %s of the database file are free", prompt.Either(dryRun, "would remove", "removed"),
					prompt.Count(answer.GetMessages(), "message"), prompt.Count(answer.GetDeadLetters(), "dead letter"),
					prompt.Count(answer.GetEvents(), "event"), prompt.Count(answer.GetWork(), "piece")+" of work", output.Size(answer.GetFreeBytes()))
			})
		},
	}
	command.DurationVar(cmd.Flags(), &olderThan, "older-than", 0, "only data that finished longer ago, 1s to 3650d")
	command.Must(cmd.MarkFlagRequired("older-than"))
	cmd.Flags().StringSliceVar(&kinds, "kind", nil, "only this kind: "+strings.Join(known, ", ")+"; repeatable")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "count the data, and remove nothing")
	command.Must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}
