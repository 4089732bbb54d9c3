package observe

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/transfer"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

var adminBackup = command.Procedure[*pb.BackupDatabaseRequest]{
	Page: command.Page{
		Use:   "backup FILE",
		Short: "Copy all data into one file while the broker runs",
		Long: `Copy the database and the contents of artifacts into one tar file while the broker
runs. Every change that was confirmed before is in it. The file appears when it is
complete and its hash is right. FILE - is standard output. "brokerd restore" unpacks
it. The archive of removed messages is not part of it.`,
		Example: `  brokerctl admin backup brokerd.tar
  brokerctl admin backup - | ssh backup@host 'cat > brokerd.tar'`,
	},
	Args:    []command.Arg{{Name: "the file to write", Kind: command.Kind{Files: true}}},
	Options: []command.Option{{Name: "force", Type: "bool", Usage: "replace FILE if it exists"}},
	Run: func(g *command.Given, _ *pb.BackupDatabaseRequest) error {
		c, cmd, to := g.Caller, g.Cmd, g.Args[0]
		if _, err := os.Lstat(c.Env.Path(to)); err == nil && to != "-" && !g.On("force") {
			return problem.Usagef("%s exists; --force replaces it", to)
		}
		broker, err := c.Connect(cmd.Context())
		if err != nil {
			return err
		}
		if to == "-" {
			_, err := receiveBackup(c, cmd, broker, cmd.OutOrStdout())
			return err
		}
		made, err := writeBackup(c, cmd, broker, to)
		if err != nil {
			return err
		}
		return c.Show(cmd, made, func(w io.Writer) {
			prompt.Say(w, "wrote %s (%s): revision %d with %s, %s, %s and %s of artifacts",
				prompt.Clean(to), output.Size(made.GetSize()),
				made.GetRevision(), prompt.Count(made.GetSessions(), "session"), prompt.Count(made.GetMessages(), "message"),
				prompt.Count(made.GetEvents(), "event"), prompt.Count(made.GetContents(), "file"))
		})
	},
}

// writeBackup writes a backup into a file, which appears when it is complete.
func writeBackup(c *command.Caller, cmd *cobra.Command, broker *client.Client, to string) (*pb.Backup, error) {
	made, err := transfer.WriteFile(c, to, func(file *os.File) (made *pb.Backup, err error) {
		if made, err = receiveBackup(c, cmd, broker, file); err == nil {
			err = file.Sync()
		}
		return made, err
	})
	if err != nil {
		return nil, err
	}
	return made, syncFolder(filepath.Dir(c.Env.Path(to)))
}

// syncFolder writes the names in a folder to the disk.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// receiveBackup makes a backup, writes its file, and compares size and hash.
func receiveBackup(c *command.Caller, cmd *cobra.Command, broker *client.Client, w io.Writer) (*pb.Backup, error) {
	stream, err := broker.Admin().BackupDatabase(cmd.Context(), &pb.BackupDatabaseRequest{})
	if err != nil {
		return nil, err
	}
	copied, received := transfer.NewProgress(c, cmd, "copied"), transfer.NewProgress(c, cmd, "received")
	defer received.End()
	defer copied.End()
	sum := sha256.New()
	var written, total int64
	for {
		in, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, problem.Failf(problem.ExitError, "the backup was cut off after %s", output.Size(written))
		case err != nil:
			return nil, err
		}
		switch frame := in.GetFrame().(type) {
		case *pb.BackupDatabaseResponse_Progress:
			copied.Show(frame.Progress.GetCopiedBytes(), frame.Progress.GetDatabaseBytes())
			total = frame.Progress.GetFileBytes()
		case *pb.BackupDatabaseResponse_Chunk:
			if _, err := w.Write(frame.Chunk); err != nil {
				return nil, err
			}
			sum.Write(frame.Chunk)
			written += int64(len(frame.Chunk))
			received.Show(written, total)
		case *pb.BackupDatabaseResponse_Backup:
			made := frame.Backup
			if made.GetSize() != written || made.GetSha256() != hex.EncodeToString(sum.Sum(nil)) {
				return nil, problem.Failf(problem.ExitError,
					"the backup is damaged: %s arrived, and their hash is not that of the broker", output.Size(written))
			}
			return made, nil
		}
	}
}
