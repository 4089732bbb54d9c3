package auth_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// A secret that clients present, in whatever state and however often, is in no file of the data folder
// and in no line of the log.
func TestSecret_IsNeitherInTheDataFolderNorInTheLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{MessageKey: "m"}), zapcore.Lock(zapcore.AddSync(&log)), zap.DebugLevel)
	k := newKit(t, apptest.With(func(c *app.Config) { c.Log = zap.New(core) }))
	secrets := map[string]string{}
	rapid.Check(t, func(rt *rapid.T) {
		in := &pb.IssueCredentialRequest{
			Access:      rapid.SampledFrom([]pb.CredentialAccess{observer, agent, operator}).Draw(rt, "access"),
			Description: rapid.StringMatching(`[a-z ]{0,20}`).Draw(rt, "description"),
		}
		if in.Access == agent {
			in.Session, in.Agent = "default", rapid.StringMatching(`[a-z]{1,8}`).Draw(rt, "agent")
		}
		c, secret := k.Issue(in)
		secrets[c.GetId()] = secret
		apptest.NoError(rt, k.see(k.OverTCP(secret)))
		if rapid.Bool().Draw(rt, "revoke") {
			k.revoke(c.GetId(), "")
			apptest.Refused(t, k.see(k.OverTCP(secret)), codes.Unauthenticated, "CREDENTIAL_REVOKED")
		}
		link := k.link("default", rapid.SampledFrom([]pb.CredentialAccess{observer, operator}).Draw(rt, "link"))
		secrets["link "+fmt.Sprint(len(secrets))] = link
		if rapid.Bool().Draw(rt, "log in") {
			login, err := k.login(link)
			apptest.NoError(rt, err)
			secrets["token "+fmt.Sprint(len(secrets))] = login.GetToken()
			if _, err := k.login(link); err == nil {
				rt.Fatal("a used link is accepted")
			}
		}
		planted := rapid.StringMatching(`planted-[A-Za-z0-9]{30}`).Draw(rt, "an unknown secret")
		secrets["unknown "+fmt.Sprint(len(secrets))] = planted
		if err := k.see(k.OverTCP(planted)); err == nil {
			rt.Fatal("an unknown secret is accepted")
		}
	})
	secrets["the operator's file"] = k.Credential()
	k.Restart() // the stop writes what waits

	files := 0
	err := filepath.WalkDir(k.Dir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == "operator.credential" {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		find(t, path, text, secrets)
		return nil
	})
	if err != nil || files == 0 {
		t.Fatalf("%d files: %v", files, err)
	}
	find(t, "the log", log.Bytes(), secrets)
}

// find reports secrets in a text, as text and as the bytes that it stands for.
func find(t *testing.T, where string, text []byte, secrets map[string]string) {
	t.Helper()
	for id, secret := range secrets {
		raw, _ := base64.RawURLEncoding.DecodeString(secret)
		if bytes.Contains(text, []byte(secret)) || len(raw) == 32 && bytes.Contains(text, raw) {
			t.Errorf("the secret of %s is in %s", id, where)
		}
	}
}

// The hash of a secret is in the database: the search above can find something.
func TestSecret_IsStoredAsItsHash(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it reads the file of the database")
	k := newKit(t)
	_, secret := k.forAgent("a")
	k.Restart()
	sum := sha256.Sum256([]byte(secret))
	var text []byte
	for _, name := range []string{"brokerd.db", "brokerd.db-wal"} {
		part, err := os.ReadFile(filepath.Join(k.Dir(), name))
		apptest.NoError(t, err)
		text = append(text, part...)
	}
	if !bytes.Contains(text, sum[:]) {
		t.Error("the hash is not there")
	}
}
