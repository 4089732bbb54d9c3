package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/brokerd/importer"
	"brokerd/cmd/internal/exitcode"
)

// importOptions are the flags of import sqlite.
type importOptions struct {
	addr, session, output string
	dryRun                bool
}

func newImport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Move a team from another system to a running broker",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImportSQLite())
	return cmd
}

func newImportSQLite() *cobra.Command {
	var o importOptions
	cmd := &cobra.Command{
		Use:   "sqlite FILE",
		Short: "Import agents, subscriptions and messages from a SQLite file",
		Long: `import sqlite reads a database with the table messages and, if they are there,
agent_status, channel_subscriptions and dead_letter_queue. It registers the
agents, subscribes them, and sends the messages that are pending or processing,
in the order of their timestamps, in the names of their senders. Dead letters
become dead letters of the broker. Messages that are done, failed or expired are
kept as the artifact import/NAME/history.jsonl, and rows that cannot be sent as
import/NAME/skipped.jsonl. NAME is the name of FILE without its ending.

The command works on a copy of FILE, never writes to FILE, and changes nothing
if FILE is damaged or has other tables. Running it again, also after it was
interrupted, sends nothing twice.

It finds the broker as brokerctl does without a configuration file:
BROKERD_ADDR, BROKERD_SESSION, BROKERD_CREDENTIAL_FILE, BROKERD_TLS_CA and so
on, else the broker in BROKERD_DATA. It needs operator rights.

Exit codes: 2 if FILE or the command line is wrong, 5 if another import runs in
the session, 7 if the caller is no operator, 69 if the broker is unreachable,
1 for other errors.`,
		Example: `  brokerd import sqlite .claude/communications/messages.db --dry-run`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("give the file with the database, and no other argument")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.output != "text" && o.output != "json" {
				return usageError{fmt.Errorf("--output is %q; it must be text or json", o.output)}
			}
			return importFailure(cmd.Context(), importSQLite(cmd, args[0], &o))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.addr, "addr", "", "the broker: unix:///path, tls://host:port or host:port; else as above")
	f.StringVar(&o.session, "session", "", "import into this session; else BROKERD_SESSION or default")
	f.StringVarP(&o.output, "output", "o", "text", "form of the report: text or json")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the report and change nothing")
	_ = cmd.RegisterFlagCompletionFunc("output", // fails only if the flag does not exist
		cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func importSQLite(cmd *cobra.Command, file string, o *importOptions) error {
	variables := client.Environment{Getenv: func(name string) string {
		switch name {
		case "BROKERD_ADDR":
			return cmp.Or(o.addr, os.Getenv(name))
		case "BROKERD_SESSION":
			return cmp.Or(o.session, os.Getenv(name))
		case "BROKERD_AGENT", "BROKERD_INCARNATION", "BROKERD_FENCE":
			return "" // the import calls as an operator
		}
		return os.Getenv(name)
	}}
	options, err := variables.Options()
	if err != nil {
		return usageError{err}
	}
	report, err := importer.Run(cmd.Context(), importer.Options{
		File: file, DryRun: o.dryRun,
		Connect: func(ctx context.Context) (*client.Client, error) { return client.Dial(ctx, options...) },
		Log:     func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), "brokerd:", line) },
	})
	if err != nil {
		return err
	}
	if o.output == "json" {
		encoder := json.NewEncoder(cmd.OutOrStdout())
		encoder.SetEscapeHTML(false)
		return encoder.Encode(report)
	}
	report.Write(cmd.OutOrStdout())
	return nil
}

// importFailure gives an error of an import its exit code, and the broker's own text.
func importFailure(ctx context.Context, err error) error {
	var broker interface{ GRPCStatus() *status.Status }
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return &exitCode{exitError, errors.New("interrupted; the same command continues the import")}
	case errors.As(err, new(*importer.FileError)), errors.As(err, new(*client.AddressError)):
		return usageError{err}
	case errors.Is(err, importer.ErrBusy):
		return &exitCode{exitcode.Conflict, err}
	case errors.As(err, new(*client.UnreachableError)):
		return &exitCode{exitcode.Unreachable, err}
	case errors.As(err, &broker):
		s := broker.GRPCStatus()
		return &exitCode{exitcode.Of(s.Code(), client.Reason(s.Err())),
			fmt.Errorf("%s; the same command continues the import", s.Message())}
	}
	return err
}
