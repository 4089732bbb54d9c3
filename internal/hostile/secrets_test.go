package hostile_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// TestSecrets_NoOutputHasASecret uses secrets in all ways, valid and not, and searches everything that
// the daemon and brokerctl write.
func TestSecrets_NoOutputHasASecret(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ps"); err != nil {
		t.Skip("this test needs ps (Debian: procps)")
	}
	files, clients := certified(t)
	collector := apptest.NewCollector(t)
	s := launch(t, clients, append(files, "--metrics", "127.0.0.1:0", "--log-level", "debug",
		"--traces", collector.Address(), "--sync", "normal")...)
	operator, err := os.ReadFile(filepath.Join(s.Dir(), "operator.credential"))
	apptest.NoError(t, err)
	key, err := os.ReadFile(files[3]) // the value of --tls-key
	apptest.NoError(t, err)
	id, issued := s.issue(pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, "default", "alice")
	link, err := s.root.CreateLoginLink(patient(t),
		&pb.CreateLoginLinkRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR})
	apptest.NoError(t, err)
	login, err := s.tcpClient(party{}).Login(patient(t), &pb.LoginRequest{Secret: link.GetSecret()})
	apptest.NoError(t, err)
	secrets := []string{
		strings.TrimSpace(string(operator)), issued, strings.Split(string(key), "\n")[1], link.GetSecret(), login.GetToken(),
	}

	written := map[string]string{}
	for i, c := range []*client{
		s.tcpClient(party{secret: secrets[0]}), s.tcpClient(party{secret: issued}),
		s.tcpClient(party{secret: issued, agent: "bob"}), s.tcpClient(party{secret: issued + "x"}),
		s.tcpClient(party{secret: login.GetToken(), agent: "alice"}), s.tcpClient(party{secret: link.GetSecret()}),
	} {
		_, err := c.RegisterAgent(patient(t), &pb.RegisterAgentRequest{})
		if err == nil {
			_, err = c.SendMessages(patient(t), send(to("alice")))
		}
		written[fmt.Sprint("error ", i)] = fmt.Sprintf("%v %v", err, status.Convert(err).Details())
	}
	_, err = s.tcpClient(party{}).Login(patient(t), &pb.LoginRequest{Secret: link.GetSecret()})
	written["the error of a used link"] = fmt.Sprintf("%v %v", err, status.Convert(err).Details())
	written["brokerctl"], written["ps"] = s.brokerctl(t, filepath.Dir(files[1]), issued)
	apptest.NoError(t, apptest.Err(s.root.RevokeCredential(patient(t), &pb.RevokeCredentialRequest{Id: id})))
	events, err := s.root.ListEvents(patient(t), &pb.ListEventsRequest{PageSize: 1000})
	apptest.NoError(t, err)
	written["events"] = events.String()
	list, err := s.root.ListCredentials(patient(t), &pb.ListCredentialsRequest{})
	apptest.NoError(t, err)
	written["credentials"] = list.String()
	written["metrics"] = s.metrics()
	written["traces"] = fmt.Sprint(collector.Await(t, 1))
	written["log"] = s.Stderr()
	for name, text := range s.files() {
		written["file "+name] = text
	}
	for name, text := range written {
		if text == "" {
			t.Errorf("%s is empty", name)
		}
		for i, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s has secret %d", name, i)
			}
		}
	}
}

// brokerctl runs a command of an agent over TLS. It returns what the command writes, and the list of
// processes while it runs.
func (s *target) brokerctl(t *testing.T, certificates, secret string) (output, processes string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "credential")
	apptest.NoError(t, os.WriteFile(file, []byte(secret), 0o600))
	program := filepath.Join(filepath.Dir(s.Program()), "brokerctl")
	c := exec.CommandContext(patient(t), program, "--agent", "alice", "receive", "--follow")
	c.Env = append(processtest.Environment(t), "BROKERD_ADDR=tls://"+s.tcp, "BROKERD_CREDENTIAL_FILE="+file,
		"BROKERD_TLS_CA="+filepath.Join(certificates, "ca.pem"))
	var stderr bytes.Buffer
	c.Stderr = &stderr
	stdout, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	apptest.NoError(t, err)
	line := make([]byte, 1<<10)
	n, readErr := stdout.Read(line) // the message that alice has sent to herself
	list, err := exec.CommandContext(patient(t), "ps", "axww", "-o", "args").Output()
	apptest.NoError(t, err)
	_ = c.Process.Kill()
	_ = c.Wait() // it was killed
	if readErr != nil {
		t.Errorf("brokerctl wrote nothing: %v: %s", readErr, stderr.String())
	}
	return string(line[:n]) + stderr.String(), string(list)
}

// files returns the contents of the data folder, without the file that has the operator's credential.
func (s *target) files() map[string]string {
	s.t.Helper()
	contents := map[string]string{}
	err := filepath.WalkDir(s.Dir(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || entry.Name() == "operator.credential" {
			return err
		}
		text, err := os.ReadFile(path)
		if len(text) > 0 {
			contents[entry.Name()] = string(text)
		}
		return err
	})
	apptest.NoError(s.t, err)
	return contents
}
