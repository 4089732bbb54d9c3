package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/internal/app"
)

func newMigrate() *cobra.Command {
	var s settings
	var from, to string
	cmd := &cobra.Command{
		Use:   "migrate --from DIR --to postgres://…",
		Short: "Move all data to PostgreSQL, or back into a folder",
		Long: `migrate copies all data of a broker that does not run: from a data folder to
an empty PostgreSQL database, or from a database to a folder without one. It
compares a checksum of each table. Instance, revisions and request ids stay the
same, so clients notice nothing but a restart.

Give --artifacts DIR if the broker runs with it: the contents of artifacts then
stay in DIR, for both. Otherwise migrate copies them between the data folder and
the database.

Afterwards no brokerd starts on the source, which keeps its data, so that not
both continue. If migrate is interrupted, no brokerd starts on the target:
repeat the same command.`,
		Example: `  brokerd migrate --from /srv/brokerd --to postgres://brokerd@db/brokerd
  brokerd migrate --from postgres://brokerd@db/brokerd --to /srv/brokerd`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.complete(cmd.Flags()); err != nil {
				return usageError{err}
			}
			source, err := s.place("from", from)
			if err != nil {
				return usageError{err}
			}
			target, err := s.place("to", to)
			if err != nil {
				return usageError{err}
			}
			if (source.Store == "") == (target.Store == "") {
				return usageError{errors.New("give one folder and one URL: copy a folder with cp -a, and a database with pg_dump")}
			}
			moved, err := app.Migrate(cmd.Context(), source, target, func(line string) {
				fmt.Fprintln(cmd.ErrOrStderr(), "brokerd:", line)
			})
			if app.Misconfigured(err) {
				return usageError{err}
			}
			if err != nil {
				return err
			}
			start := "--data " + target.Dir
			if target.Store != "" {
				start = "--store " + moved.To
			}
			contents := fmt.Sprintf("%d contents, %d bytes", moved.Contents, moved.Bytes)
			if s.Artifacts != "" {
				start, contents = start+" --artifacts "+s.Artifacts, "stay in "+s.Artifacts
			}
			fmt.Fprintf(cmd.OutOrStdout(), `moved %s to %s
  revision   %d
  rows       %d in %d tables, with equal checksums
  artifacts  %s
next: brokerd %s
`, moved.From, moved.To, moved.Revision, moved.Rows, moved.Tables, contents, start)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "where the data is: a data folder, or postgres://USER@HOST/DATABASE")
	f.StringVar(&to, "to", "", "where to move it: a folder without a database, or an empty PostgreSQL database")
	s.addContentFlags(f)
	return cmd
}

// place returns where a flag says that data is. The password is that of the database, whichever side it is on, and the
// folder of artifacts is that of both.
func (s *settings) place(flag, value string) (app.Config, error) {
	switch {
	case value == "":
		return app.Config{}, fmt.Errorf("give --%s", flag)
	case hasPassword(value):
		return app.Config{}, errPassword(flag)
	case strings.HasPrefix(value, "postgres://"), strings.HasPrefix(value, "postgresql://"):
		return app.Config{Store: value, PasswordFile: s.Password, Artifacts: s.Artifacts}, nil
	}
	if strings.Contains(value, "://") {
		return app.Config{}, fmt.Errorf("%s: must be a folder or the URL of a PostgreSQL database, postgres://USER@HOST/DATABASE", flag)
	}
	return app.Config{Dir: value, Artifacts: s.Artifacts}, nil
}
