package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd"
	"brokerd/cmd/internal/manual"
	"brokerd/internal/app"
)

// newRoot returns the command line. Without a command it serves.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "brokerd",
		Short: "A message broker for AI agents that work together",
		Long: `brokerd carries messages between AI agents that work together, and keeps a log of all of it.
One daemon, one data folder; agents and brokerctl find it through the folder.

Every flag may also be given in the environment (--log-level as BROKERD_LOG_LEVEL, and so on) or in the
YAML file named by --config (log_level). Flags win over the environment, and that over the file.

Exit codes: 1 if the daemon fails, 2 for a wrong command line or setting; exec and check have more.`,
		Version:       brokerd.ThisBuild().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("brokerd {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	serve := newServe()
	root.Args, root.RunE = serve.Args, serve.RunE
	root.Flags().AddFlagSet(serve.Flags())
	root.AddCommand(serve, newCheck(), newRestore(), newExec(), newVersion(), manual.NewCommand((*pflag.FlagSet).FlagUsagesWrapped))
	return root
}

// errUnsound is the outcome of a check that found something; the findings have been printed.
var errUnsound = errors.New("the database is not sound: keep a copy of the folder, and restore a backup")

func newCheck() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look over a data folder while no daemon runs on it",
		Long: `check reads the whole database and the invariants of its contents. Exit code 1 if something is wrong.
While a daemon runs on the folder, use "brokerctl admin check".`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.complete(cmd.Flags()); err != nil {
				return usageError{err}
			}
			problems, counted, err := app.Check(cmd.Context(), s.config())
			switch {
			case app.InUse(err):
				return fmt.Errorf("%w; use 'brokerctl admin check' while it runs", err)
			case err != nil:
				return err
			}
			for _, p := range problems {
				fmt.Fprintln(cmd.OutOrStdout(), p)
			}
			if len(problems) > 0 {
				return errUnsound
			}
			fmt.Fprintln(cmd.OutOrStdout(), "sound:", counted)
			return nil
		},
	}
	s.addFolderFlags(cmd.Flags())
	return cmd
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), "brokerd", brokerd.ThisBuild())
		},
	}
}

// noArguments refuses arguments; one that is no command of brokerd is named.
func noArguments(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return usageError{err}
	}
	return nil
}
