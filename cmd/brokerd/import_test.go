package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// messagesFile makes a database with one unfinished message from a to b.
func messagesFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "messages.db")
	db, err := sql.Open("sqlite3", "file:"+file)
	apptest.NoError(t, err)
	_, err = db.ExecContext(t.Context(), `
		CREATE TABLE messages (id, type, version, timestamp, correlation_id, from_agent, to_agent, channel, priority,
			payload, status, expires_at);
		INSERT INTO messages VALUES
			('1', 'task.update', '1.0', '2025-11-08T15:30:00Z', NULL, 'a', 'b', 'general', 5, '{}', 'pending', NULL)`)
	apptest.NoError(t, errors.Join(err, db.Close()))
	return file
}

// runProgram runs brokerd as a process with further variables, and returns what it prints and its exit code.
func runProgram(t *testing.T, variables []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	self, err := os.Executable()
	apptest.NoError(t, err)
	var out, log bytes.Buffer
	child := exec.CommandContext(t.Context(), self, args...)
	child.Env = append(append(processtest.Environment(t), asProgram+"=1"), variables...)
	child.Stdout, child.Stderr = &out, &log
	if err := child.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return out.String(), log.String(), child.ProcessState.ExitCode()
}

func TestImport_FindsTheBrokerByTheEnvironmentAndReportsInJSON(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	file := messagesFile(t)
	for _, variables := range [][]string{
		{"BROKERD_DATA=" + b.Dir(), "BROKERD_AGENT=x"}, // it is an operator's import all the same
		{"BROKERD_ADDR=" + b.Socket()},
	} {
		stdout, stderr, code := runProgram(t, variables, "import", "sqlite", file, "-o", "json")
		var report struct {
			Session string
			Kinds   []struct {
				Kind                    string
				Read, Imported, Skipped int
				AlreadyThere            int `json:"already_there"`
			}
		}
		if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 0 || report.Session != "default" {
			t.Fatalf("exit code %d: %s%s: %v", code, stdout, stderr, err)
		}
		for _, k := range report.Kinds {
			if k.Kind == "messages" && k.Imported+k.AlreadyThere != 1 {
				t.Errorf("%s", stdout)
			}
		}
	}
	page, err := pb.NewMessageServiceClient(b.Operator()).ListMessages(t.Context(),
		&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL})
	if err != nil || len(page.GetItems()) != 1 || page.GetItems()[0].GetMessage().GetSender() != "a" {
		t.Errorf("%v %v", page, err)
	}
}

func TestImport_ExitCodes(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	file := messagesFile(t)
	_, secret := b.Issue(&pb.IssueCredentialRequest{
		Access: pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, Agent: "a", Session: "default"})
	credential := filepath.Join(t.TempDir(), "credential")
	apptest.NoError(t, os.WriteFile(credential, []byte(secret), 0o600))
	asAgent := []string{"BROKERD_CREDENTIAL_FILE=" + credential, "BROKERD_ADDR=" + b.TCP()}
	for name, test := range map[string]struct {
		variables []string
		args      []string
		code      int
		want      string
	}{
		"no file":     {nil, []string{"--addr", b.Socket()}, 2, "give the file with the database"},
		"a bad file":  {nil, []string{file + "x", "--addr", b.Socket()}, 2, "messages.dbx does not exist"},
		"a bad form":  {nil, []string{file, "-o", "xml"}, 2, `--output is "xml"; it must be text or json`},
		"an address":  {nil, []string{file, "--addr", "here"}, 2, `address "here" is none of`},
		"no broker":   {nil, []string{file, "--addr", "unix:///nowhere/socket"}, 69, "no broker is running"},
		"no session":  {nil, []string{file, "--addr", b.Socket(), "--session", "other"}, 3, "other"},
		"an agent":    {asAgent, []string{file}, 7, "only an operator may do this"},
		"a broker up": {[]string{"BROKERD_ADDR=unix:///nowhere"}, []string{file, "--addr", b.Socket()}, 0, ""},
	} {
		_, stderr, code := runProgram(t, test.variables, append([]string{"import", "sqlite"}, test.args...)...)
		quiet := test.want != "" || stderr == ""
		if code != test.code || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "rpc error") || !quiet {
			t.Errorf("%s: exit code %d: %s", name, code, stderr)
		}
	}
}
