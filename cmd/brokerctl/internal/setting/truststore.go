package setting

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"brokerd/cmd/brokerctl/internal/problem"
)

// ConnectionKeys are the keys of a configFile that say where calls go and what proves who calls. They
// count only if the user trusts the file with these values: another person may have written it, such as
// the author of a repository.
var ConnectionKeys = []string{"addr", "tls_ca", "tls_cert", "tls_key", "credential_file"}

// Connects reports whether the file has one of the connectionKeys.
func (f Config) Connects() bool {
	return slices.ContainsFunc(ConnectionKeys, func(key string) bool { return f.given[key] != "" })
}

// Proof returns the first key of the file that names what proves who calls; "" if it has none.
func (f Config) Proof() string {
	for _, key := range []string{"credential_file", "tls_cert", "tls_key"} {
		if f.Values[key] != "" {
			return key
		}
	}
	return ""
}

// ConnectionSum returns the SHA-256 of the values of the connectionKeys, as the file has them. The
// Python and TypeScript clients compute the same one.
func (f Config) ConnectionSum() string {
	var text strings.Builder
	for _, key := range ConnectionKeys {
		fmt.Fprintf(&text, "%s %d %s\n", key, len(f.given[key]), f.given[key])
	}
	sum := sha256.Sum256([]byte(text.String()))
	return hex.EncodeToString(sum[:])
}

// A Location is where a file is that a configFile names.
type Location struct {
	Target string // without symbolic links; of a missing file, as the configFile names it
	Linked bool   // a symbolic link leads to the target
	Named  bool   // the path in the configFile is in its folder
	Inside bool   // the target is in the folder
}

// Locate returns where the file is that one of the fileKeys of the configFile at path names.
func (f Config) Locate(path, key string) Location {
	folder := filepath.Dir(trustedPath(path))
	named := f.given[key]
	if !filepath.IsAbs(named) {
		named = filepath.Join(folder, named)
	}
	p := Location{Target: named}
	if target, err := filepath.EvalSymlinks(named); err == nil {
		p.Target, p.Linked = target, target != filepath.Clean(named)
	}
	p.Named, p.Inside = isIn(folder, named), isIn(folder, p.Target)
	return p
}

func isIn(folder, file string) bool {
	relative, err := filepath.Rel(folder, file)
	return err == nil && filepath.IsLocal(relative)
}

// leadsOut returns an error if the configFile at path names a file in its folder, and a symbolic link
// leads out of the folder. The person who trusted the file did not see that target if the link was
// created later.
func (f Config) leadsOut(path string) error {
	for _, key := range FileKeys {
		if f.given[key] == "" {
			continue
		}
		if p := f.Locate(path, key); p.Named && !p.Inside {
			return &problem.Failure{Code: problem.ExitUsage, Err: ErrRefused, Text: fmt.Sprintf("%s: a symbolic link leads %s out "+
				"of the folder: name its target in the file, and run `brokerctl trust`", path, key)}
		}
	}
	return nil
}

// A TrustStore is the folder that has one file for each configFile that the user trusts: $XDG_CONFIG_HOME
// or ~/.config, brokerd/trusted. Only its user may change it.
type TrustStore struct{ dir string }

// TrustStore returns the store of the user.
func (e Environment) TrustStore() (TrustStore, error) {
	dir := e.Get("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home, err := e.HomeDir()
		if err != nil {
			return TrustStore{}, err
		}
		dir = filepath.Join(home, ".config")
	}
	return TrustStore{filepath.Join(dir, "brokerd", "trusted")}, nil
}

// A trusted is an entry of a trustStore.
type trusted struct {
	File string `json:"file"`   // its path, in a folder without symbolic links
	Sum  string `json:"sha256"` // its connectionSum
}

// trustedPath returns the path that stands for a configFile in a trustStore.
func trustedPath(path string) string {
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(dir, filepath.Base(path))
	}
	return path // the folder was removed
}

// entry returns the path of the entry for a configFile.
func (s TrustStore) entry(path string) string {
	sum := sha256.Sum256([]byte(trustedPath(path)))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:]))
}

// Trusts reports whether the user trusts the file at path with these values.
func (s TrustStore) Trusts(path string, file Config) (bool, error) {
	t, err := s.read(s.entry(path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && t.File == trustedPath(path) && t.Sum == file.ConnectionSum(), err
}

// read reads an entry. It refuses one that another user could have written.
func (s TrustStore) read(name string) (trusted, error) {
	f, err := os.Open(name)
	if err != nil {
		return trusted{}, err
	}
	defer func() { _ = f.Close() }() // it is only read
	info, err := f.Stat()
	if err != nil {
		return trusted{}, err
	}
	if by := Owner(info); by != uint32(os.Getuid()) || info.Mode().Perm()&0o022 != 0 {
		return trusted{}, problem.Usagef("%s may be from another user: its owner is %d, its mode is %o; remove it", name, by,
			info.Mode().Perm())
	}
	var t trusted
	if err := json.NewDecoder(f).Decode(&t); err != nil {
		return trusted{}, problem.Usagef("%s cannot be read: %v; remove it", name, err)
	}
	return t, nil
}

// Add makes the user trust the file at path with these values.
func (s TrustStore) Add(path string, file Config) error {
	text, err := json.Marshal(trusted{trustedPath(path), file.ConnectionSum()})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, ".new-*") // with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), s.entry(path))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Remove makes the user trust the file at path no longer, and reports whether it was trusted.
func (s TrustStore) Remove(path string) (bool, error) {
	err := os.Remove(s.entry(path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// List returns the entries in the order of their paths.
func (s TrustStore) List() ([]trusted, error) {
	names, err := filepath.Glob(filepath.Join(s.dir, "[0-9a-f]*"))
	if err != nil {
		return nil, err
	}
	var all []trusted
	for _, name := range names {
		t, err := s.read(name)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b trusted) int { return strings.Compare(a.File, b.File) })
	return all, nil
}

// ErrRefused is the cause of an error before any call: the settings must not be used.
var ErrRefused = errors.New("the settings are refused")

// untrusted is the error of a command that needs values of a configFile that the user does not trust.
func untrusted(path string) error {
	return &problem.Failure{Code: problem.ExitUsage, Err: ErrRefused, Text: fmt.Sprintf(
		"%s says where calls go or with which credential, and you have not trusted it: read it, then run "+
			"`brokerctl trust`; --no-config ignores the file", path)}
}

// MayExtend returns an error if init or setup would make the user trust values of another person.
func (s TrustStore) MayExtend(path string, had Config) error {
	if !had.Connects() {
		return nil
	}
	if ok, err := s.Trusts(path, had); err != nil || ok {
		return err
	}
	return untrusted(path)
}
