package main

import (
	"crypto/x509"
	"encoding/pem"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// certificateFiles returns the contents of all files below a folder. Keys and folders must be
// private.
func certificateFiles(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		want := os.FileMode(0o644)
		switch {
		case info.IsDir():
			want = 0o700
		case strings.HasSuffix(path, ".key"):
			want = 0o600
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
		if info.IsDir() {
			return nil
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(text)
		return err
	})
	apptest.NoError(t, err)
	return files
}

func parseCertificate(t testing.TB, text string) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatalf("no certificate: %q", text)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	apptest.NoError(t, err)
	return c
}

func TestCredentialTLS_MakesWhatIsMissingAndKeepsTheRest(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	out := must0(t, "credential", "tls", "ours", "--host", "broker.example", "--host", "10.0.0.7", "builder-1", "--session", "team")
	first := certificateFiles(t, t.path("ours"))
	want := []string{"agents/team/builder-1.key", "agents/team/builder-1.pem", "ca.key", "ca.pem", "server.key", "server.pem"}
	if got := slices.Sorted(maps.Keys(first)); !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	if !strings.Contains(out, "builder-1 in team") || strings.Count(out, "written") != 3 {
		t.Errorf("%s", out)
	}

	roots := x509.NewCertPool()
	roots.AddCert(parseCertificate(t, first["ca.pem"]))
	server, agent := parseCertificate(t, first["server.pem"]), parseCertificate(t, first["agents/team/builder-1.pem"])
	for _, host := range []string{"broker.example", "10.0.0.7"} {
		if _, err := server.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Error(err)
		}
	}
	if _, err := agent.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if len(agent.URIs) != 1 || agent.URIs[0].String() != "brokerd:///sessions/team/agents/builder-1" {
		t.Errorf("the agent's certificate names %v", agent.URIs)
	}
	for _, c := range []*x509.Certificate{server, agent} {
		if left := time.Until(c.NotAfter); left < 364*24*time.Hour || left > 366*24*time.Hour {
			t.Errorf("%v is valid for %v", c.Subject, left)
		}
	}

	out = must0(t, "credential", "tls", "ours", "critic-1", "builder-1", "--session", "team")
	second := certificateFiles(t, t.path("ours"))
	for name, text := range first {
		if second[name] != text {
			t.Errorf("%s was replaced", name)
		}
	}
	if len(second) != len(first)+2 || strings.Count(out, "written") != 1 || strings.Count(out, "kept") != 3 {
		t.Errorf("%s", out)
	}
}

func TestCredentialTLS_RenewsOnlyWhatIsAskedFor(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	must0(t, "credential", "tls", "ours", "builder-1", "critic-1", "--host", "localhost")
	for _, c := range []struct {
		args    []string
		renewed []string
	}{
		{[]string{"--renew", "critic-1"}, []string{"agents/default/critic-1.key", "agents/default/critic-1.pem"}},
		{[]string{"--renew", "--host", "broker.example"}, []string{"server.key", "server.pem"}},
		{[]string{"--renew"}, []string{"agents/default/builder-1.key", "agents/default/builder-1.pem", "agents/default/critic-1.key",
			"agents/default/critic-1.pem", "server.key", "server.pem"}},
	} {
		before := certificateFiles(t, t.path("ours"))
		must0(t, append([]string{"credential", "tls", "ours"}, c.args...)...)
		var renewed []string
		for name, text := range certificateFiles(t, t.path("ours")) {
			if before[name] != text {
				renewed = append(renewed, name)
			}
		}
		if slices.Sort(renewed); !slices.Equal(renewed, c.renewed) {
			t.Errorf("%q replaced %q, want %q", c.args, renewed, c.renewed)
		}
	}
	if got := parseCertificate(t, certificateFiles(t, t.path("ours"))["server.pem"]).DNSNames; !slices.Equal(got, []string{"broker.example"}) {
		t.Errorf("the renewed certificate of the server is for %q", got)
	}
}

func TestCredentialTLS_MistakesChangeNothing(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	must0(t, "credential", "tls", "ours", "--host", "localhost")
	before := certificateFiles(t, t.path("ours"))
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--host", "broker.example"}, problem.ExitConflict, "is for localhost, not for broker.example; --renew replaces it"},
		{[]string{"two words"}, problem.ExitUsage, "is not a name"},
		{[]string{"../builder"}, problem.ExitUsage, "is not a name"},
		{[]string{"builder-1", "--for", "0s"}, problem.ExitUsage, "--for"},
		{[]string{"--renew", "--host", "a b"}, problem.ExitUsage, "neither the name nor the address"},
	} {
		got := ctl(t, append([]string{"credential", "tls", "ours"}, c.args...)...)
		if got.code != c.code || !strings.Contains(got.err, c.want) {
			t.Errorf("%q: %+v, want %d %q", c.args, got, c.code, c.want)
		}
	}
	if after := certificateFiles(t, t.path("ours")); !maps.Equal(before, after) {
		t.Errorf("the folder has %q", slices.Sorted(maps.Keys(after)))
	}
	apptest.NoError(t, os.Remove(t.path("ours/server.key")))
	if got := ctl(t, "credential", "tls", "ours"); got.code != problem.ExitConflict || !strings.Contains(got.err, "only one of") {
		t.Errorf("a certificate without its key: %+v", got)
	}
}

func TestCredentialTLS_AgentsWorkWithTheirCertificates(tt *testing.T) {
	t := newShell(tt)
	startBrokerWith(t, func(c *app.Config) {
		must0(t, "credential", "tls", "ours", "builder-1")
		c.Listen = []string{"127.0.0.1:0"}
		c.TLS = app.TLSFiles{
			Cert: t.path("ours/server.pem"), Key: t.path("ours/server.key"), ClientCA: t.path("ours/ca.pem"),
		}
	})
	address := tcpAddress(t)
	if !strings.HasPrefix(address, "tls://") {
		t.Errorf("the address is %s", address)
	}
	const cert, key = "ours/agents/default/builder-1.pem", "ours/agents/default/builder-1.key"
	configure(t, "addr: "+address+"\ntls_ca: ours/ca.pem\ntls_cert: "+cert+"\ntls_key: "+key+"\n")
	apptest.NoError(t, os.Mkdir(t.path("below"), 0o755))
	t.Chdir("below") // the file's paths are relative to its folder
	must0(t, "trust", "--yes")
	must0(t, "--agent", "builder-1", "agent", "register")
	got := ctl(t, "--agent", "critic-1", "agent", "register")
	if got.code != problem.ExitDenied || !strings.Contains(got.err, "builder-1") {
		t.Errorf("another agent's name: %+v", got)
	}
	t.Setenv("BROKERD_TLS_CA", "../"+cert) // no authority
	got = ctl(t, "--addr", address, "whoami")
	if got.code != problem.ExitUnreachable || !strings.Contains(got.err, "an authority that is not trusted") {
		t.Errorf("another authority: %+v", got)
	}
	t.Setenv("BROKERD_TLS_CA", "none.pem")
	got = ctl(t, "--addr", address, "whoami")
	if got.code != problem.ExitUsage || !strings.Contains(got.err, "none.pem") {
		t.Errorf("no file of authorities: %+v", got)
	}
	must0(t, "whoami") // the local broker needs no TLS
}
