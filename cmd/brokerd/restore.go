package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"brokerd/internal/app"
)

func newRestore() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "restore FILE --data DIR",
		Short: "Unpack a backup into a new data folder",
		Long: `restore unpacks a backup that "brokerctl admin backup" has made into a new or
empty folder. It compares all hashes and checks the database as "brokerd check"
does. FILE - is standard input. The counter of revisions then jumps by 10^12, so
that no revision is issued twice; clients that resume from a revision which the
backup does not have get the error RESTORED. A restore that was interrupted is
repeated with the same command.

After another program has restored the database, such as pg_restore or
Litestream, use "brokerd restored".`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("give the file of the backup, or - for standard input")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.complete(cmd.Flags()); err != nil {
				return usageError{err}
			}
			if s.Store != "" {
				return usageError{errors.New("restore unpacks into a folder alone: leave --store out, " +
					"and then copy the folder with brokerd migrate --from DIR --to postgres://…")}
			}
			from := cmd.InOrStdin()
			if args[0] != "-" {
				file, err := os.Open(args[0])
				if err != nil {
					return usageError{err}
				}
				defer func() { _ = file.Close() }() // it is only read
				from = file
			}
			restored, err := app.Restore(cmd.Context(), s.config(), from)
			if err != nil {
				return err
			}
			reportRestored(cmd.OutOrStdout(), s.Data, &restored)
			return nil
		},
	}
	s.addFolderFlags(cmd.Flags())
	return cmd
}

func newRestored() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "restored",
		Short: "Note that another program has restored the database",
		Long: `restored is for a database that another program has restored: the one of
--store, by PostgreSQL's tools, or the one in the data folder, by Litestream.
Run it before the daemon starts on it. It checks the database, prints what is
wrong, such as missing contents of artifacts, and makes the counter of revisions
jump by 10^12, so that no revision is issued twice; clients that resume from a
revision which the backup does not have get the error RESTORED.`,
		Example: `  pg_restore --dbname postgres://brokerd@db/brokerd brokerd.dump
  brokerd restored --store postgres://brokerd@db/brokerd`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.complete(cmd.Flags()); err != nil {
				return usageError{err}
			}
			restored, err := app.NoteRestored(cmd.Context(), s.config())
			if err != nil {
				return err
			}
			for _, p := range restored.Problems {
				fmt.Fprintln(cmd.OutOrStdout(), p)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "restored %s: revision %d; the counter continues at %d\n",
				restored.Name, restored.Last, restored.Next)
			return nil
		},
	}
	s.addFolderFlags(cmd.Flags())
	return cmd
}

func reportRestored(w io.Writer, dir string, r *app.Restored) {
	fmt.Fprintf(w, `restored %s
  backup     made by brokerd %s at %s
  revision   %d; the counter continues at %d
  sessions   %d
  messages   %d
  events     %d
  artifacts  %d files, %d bytes
next:
  1. copy the folder archive/ of the old data folder to %s/archive, if it still exists
  2. stop the old broker for good, and start this one: brokerd --data %s
  3. clients on TCP need the new operator.credential of this folder; revoke credentials again that were revoked after the backup
  4. changes made after the backup are lost: agents read the present state again (docs/data.md, "After a restore")
`, dir, r.Version, r.CreatedAt.Format(time.RFC3339), r.Revision, r.Next, r.Sessions, r.Messages, r.Events,
		r.Contents, r.ContentBytes, dir, dir)
}
