package auth

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"brokerd/internal/fault"
)

// CredentialFile is the file of the data folder that holds the operator's credential.
const CredentialFile = "operator.credential"

// secretBytes is the number of random bytes of a secret.
const secretBytes = 32

// OperatorSecret returns the secret in the operator's file of the data folder. Without the file, it
// creates one that only the daemon's own user can read. A file that others may read, or that contains
// no secret, is fault.Precondition.
func OperatorSecret(dir string) (string, error) {
	path := filepath.Join(dir, CredentialFile)
	secret, err := readSecret(path)
	if errors.Is(err, fs.ErrNotExist) {
		secret, err = createFile(path)
	}
	if err != nil {
		return "", fmt.Errorf("operator credential: %w", err)
	}
	return secret, nil
}

// newSecret returns a secret in base64url.
func newSecret() string {
	raw := make([]byte, secretBytes)
	_, _ = rand.Read(raw) // never fails
	return base64.RawURLEncoding.EncodeToString(raw)
}

func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fault.New(fault.Precondition, "CREDENTIAL_EXPOSED",
			"others may read the operator's credential: remove %s so that the next start makes a new one, or chmod 600 it", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, 4*secretBytes))
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(text))
	if raw, err := base64.RawURLEncoding.DecodeString(secret); err != nil || len(raw) != secretBytes {
		return "", fault.New(fault.Precondition, "CREDENTIAL_UNREADABLE",
			"the file %s holds no credential: remove it, and the next start makes a new one", path)
	}
	return secret, nil
}

// createFile writes a new secret under another name and renames the file, so the file is always
// complete.
func createFile(path string) (string, error) {
	secret := newSecret()
	f, err := os.CreateTemp(filepath.Dir(path), CredentialFile+".*") // with mode 0600
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(secret + "\n")
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return secret, nil
}
