package authority

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// readPair reads a certificate and its key. It returns fs.ErrNotExist if both are missing.
func readPair(c Certificate) (tls.Certificate, error) {
	_, missing := os.Stat(c.File)
	_, keyMissing := os.Stat(c.Key)
	if errors.Is(missing, fs.ErrNotExist) != errors.Is(keyMissing, fs.ErrNotExist) {
		return tls.Certificate{}, fmt.Errorf("%w: only one of %s and %s exists", ErrExists, c.File, c.Key)
	}
	if missing != nil {
		return tls.Certificate{}, missing
	}
	return tls.LoadX509KeyPair(c.File, c.Key)
}

// readLeaf reads a certificate without its key.
func readLeaf(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s holds no certificate", path)
	}
	return x509.ParseCertificate(block.Bytes)
}

// writePair writes a certificate and its key, each whole or not at all. Unless replace is set, an
// existing file is an error.
func writePair(c Certificate, der []byte, key *ecdsa.PrivateKey, replace bool) error {
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(c.Key, "PRIVATE KEY", secret, 0o600, replace); err != nil {
		return err
	}
	return writePEM(c.File, "CERTIFICATE", der, 0o644, replace)
}

func writePEM(path, kind string, data []byte, mode fs.FileMode, replace bool) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removed(f.Name())) }()
	err = pem.Encode(f, &pem.Block{Type: kind, Bytes: data})
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if replace {
		return os.Rename(f.Name(), path)
	}
	return os.Link(f.Name(), path) // fails if the file exists
}

// removed removes a file, which may have another name by now.
func removed(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
