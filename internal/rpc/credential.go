package rpc

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
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

const credentialBytes = 32

// A Credential recognises a secret without keeping it. The zero value recognises nothing.
type Credential struct {
	sum   [sha256.Size]byte
	known bool
}

// OperatorCredential reads the operator's credential from the data folder, and makes one, readable
// by the daemon's own user alone, if there is none. A file that others may read, or that holds no
// credential, is fault.Precondition.
func OperatorCredential(dir string) (Credential, error) {
	path := filepath.Join(dir, CredentialFile)
	secret, err := readCredential(path)
	if errors.Is(err, fs.ErrNotExist) {
		secret, err = makeCredential(path)
	}
	if err != nil {
		return Credential{}, fmt.Errorf("operator credential: %w", err)
	}
	return Credential{sum: sha256.Sum256([]byte(secret)), known: true}, nil
}

// matches compares in constant time.
func (c Credential) matches(secret string) bool {
	sum := sha256.Sum256([]byte(secret))
	return c.known && subtle.ConstantTimeCompare(sum[:], c.sum[:]) == 1
}

func readCredential(path string) (string, error) {
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
	text, err := io.ReadAll(io.LimitReader(f, 4*credentialBytes))
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(text))
	if raw, err := base64.RawURLEncoding.DecodeString(secret); err != nil || len(raw) != credentialBytes {
		return "", fault.New(fault.Precondition, "CREDENTIAL_UNREADABLE",
			"the file %s holds no credential: remove it, and the next start makes a new one", path)
	}
	return secret, nil
}

// makeCredential writes a new credential under another name first: a file that is there is whole.
func makeCredential(path string) (string, error) {
	raw := make([]byte, credentialBytes)
	_, _ = rand.Read(raw) // never fails
	secret := base64.RawURLEncoding.EncodeToString(raw)
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
