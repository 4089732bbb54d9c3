package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd"
	"brokerd/cmd/internal/manual"
	"brokerd/internal/app"
	"brokerd/internal/nearest"
)

// newRoot returns the command line. Without a command it serves.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "brokerd",
		Short: "A message broker for AI agents that work together",
		Long: `brokerd carries messages between AI agents that work together, and keeps a log
of all of it. One daemon, one data folder; agents and brokerctl find it through
the folder. brokerctl up starts it in the background.

Every flag may also be given in the environment (--log-level as
BROKERD_LOG_LEVEL, and so on) or in the YAML file named by --config (log_level).
Flags win over the environment, and that over the file.

Exit codes: 1 if the daemon fails, 2 for a wrong command line or setting; exec
and check have more.`,
		Example: `  brokerd --listen 127.0.0.1:7420
  brokerd exec -- make test`,
		Version:       brokerd.ThisBuild().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("brokerd {{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"))
	root.SetFlagErrorFunc(explainFlagError)
	serve := newServe()
	root.Args, root.RunE = serve.Args, serve.RunE
	root.Flags().AddFlagSet(serve.Flags())
	root.AddCommand(serve, newCheck(), newRestore(), newRestored(), newMigrate(), newImport(), newExec(), newVersion(),
		manual.NewCommand((*pflag.FlagSet).FlagUsagesWrapped))
	return root
}

// errUnsound is the outcome of a check that found something; the findings have been printed.
var errUnsound = errors.New("the database is not sound: keep a copy of it, and restore a backup")

func newCheck() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look over the data while no daemon runs on it",
		Long: `check reads the whole database, in the data folder or on the server of --store,
and the invariants of its contents. Exit code 1 if something is wrong. While a
daemon runs on it, use "brokerctl admin check".`,
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

// flagSynonyms are flags of other programs, and the flag that stands for each of them here.
var flagSynonyms = map[string]string{
	"port": "listen", "host": "listen", "bind": "listen", "addr": "listen", "address": "listen", "dir": "data", "db": "data",
	"level": "log-level", "verbose": "log-level",
}

// explainFlagError adds to the error of a flag that does not exist the flag that may be meant.
func explainFlagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return usageError{err}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	hint := ""
	given := unknown.GetSpecifiedName()
	if near := nearest.Names(given, names); len(near) > 0 && nearest.Like(given, near[0]) {
		hint = near[0]
	}
	if meant := flagSynonyms[given]; cmd.Flags().Lookup(meant) != nil {
		hint = meant
	}
	if hint != "" {
		hint = "; did you mean --" + hint + "?"
	}
	return usageError{fmt.Errorf("%w%s (see %s --help)", err, hint, cmd.CommandPath())}
}

// noArguments refuses arguments. One that stands where a command may stand is named as an unknown command.
func noArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasParent():
		return usageError{fmt.Errorf("%s takes no argument, and %q is one (see %[1]s --help)", cmd.CommandPath(), args[0])}
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	hint := ""
	switch near := nearest.Names(args[0], names); {
	case args[0] == "start", args[0] == "run":
		hint = "; did you mean serve?"
	case len(near) > 0 && nearest.Like(args[0], near[0]):
		hint = "; did you mean " + near[0] + "?"
	}
	return usageError{fmt.Errorf("unknown command %q%s (see brokerd --help)", args[0], hint)}
}
