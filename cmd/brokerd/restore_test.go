package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// A backup that was made with the API is restored by the command.
func TestRestore_ReportsWhatIsInItAndWhatToDoNext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := pb.NewAdminServiceClient(apptest.Start(t).Operator()).BackupDatabase(ctx, &pb.BackupDatabaseRequest{})
	apptest.NoError(t, err)
	var file []byte
	for err == nil {
		var in *pb.BackupDatabaseResponse
		in, err = stream.Recv()
		file = append(file, in.GetChunk()...)
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "brokerd.tar")
	apptest.NoError(t, os.WriteFile(path, file, 0o600))
	dir := filepath.Join(t.TempDir(), "data")
	restore := func(input string, args ...string) (string, int) {
		cmd := exec.Command(os.Args[0], append([]string{"restore"}, args...)...)
		cmd.Env = append(processtest.Environment(t), asProgram+"=1")
		cmd.Stdin = strings.NewReader(input)
		text, _ := cmd.CombinedOutput()
		return string(text), cmd.ProcessState.ExitCode()
	}
	text, code := restore("", path, "--data", dir)
	for _, want := range []string{"restored " + dir, "made by brokerd test at ", "sessions   1\n", "brokerd --data " + dir, "operator.credential"} {
		if code != 0 || !strings.Contains(text, want) {
			t.Errorf("exit code %d; %q is not in\n%s", code, want, text)
		}
	}
	for _, c := range []struct {
		input string
		args  []string
		code  int
		want  string
	}{
		{"", []string{path, "--data", dir}, 1, "is not empty"},
		{"", []string{"--data", dir}, 2, "give the file"},
		{"", []string{"none.tar", "--data", dir}, 2, "no such file"},
		{"text", []string{"-", "--data", filepath.Join(t.TempDir(), "data")}, 1, "is no backup of brokerd"},
		{string(file), []string{"-", "--data", filepath.Join(t.TempDir(), "data")}, 0, "restored"},
	} {
		if text, code := restore(c.input, c.args...); code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%q: exit code %d, want %d; %q, want %q", c.args, code, c.code, text, c.want)
		}
	}
}
