package setting

import (
	"cmp"
	"fmt"
	"strings"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/problem"
)

// chooseConnection chooses the address, and what proves who calls there. Flags and environment are one
// source, the file is another one: a credential or certificate of one is never sent to an address of the
// other.
//
//   - If flags or environment name the address, the connectionKeys of the file do not count.
//   - If only the file does, its credential and its certificate count. If it has neither, those of the
//     environment are an error.
//   - The user's own broker on this machine is for both: the environment wins.
//
// A file that the user does not trust, or that names a file through a symbolic link out of its folder,
// ends the command. It never has the default address instead.
func (s *Settings) chooseConnection(r *Resolver, file Config) error {
	env := r.Env
	s.Addr = Value{r.Global.Addr, "--addr"}
	if s.Addr.Value == "" {
		s.Addr = Value{env.Get("BROKERD_ADDR"), "BROKERD_ADDR"}
	}
	s.CredentialFile = Value{env.Path(env.Get("BROKERD_CREDENTIAL_FILE")), "BROKERD_CREDENTIAL_FILE"}
	s.TLS = client.TLS{
		CA: env.Path(env.Get("BROKERD_TLS_CA")), Cert: env.Path(env.Get("BROKERD_TLS_CERT")),
		Key: env.Path(env.Get("BROKERD_TLS_KEY")), ServerName: env.Get("BROKERD_TLS_SERVER_NAME"),
	}
	if s.Addr.Value != "" {
		return nil
	}
	s.Addr = Value{}
	if !file.Connects() {
		return nil
	}
	store, err := env.TrustStore()
	if err != nil {
		return err
	}
	switch ok, err := store.Trusts(s.File, file); {
	case err != nil:
		return err
	case !ok:
		s.Refused = untrusted(s.File)
		return nil
	}
	if s.Refused = file.leadsOut(s.File); s.Refused != nil {
		return nil
	}
	s.TLS.CA = cmp.Or(file.Values["tls_ca"], s.TLS.CA) // it is no secret
	own := s.CredentialFile.Value != "" || s.TLS.Cert != "" || s.TLS.Key != ""
	fromFile := file.Proof() != ""
	if address := file.Values["addr"]; address != "" {
		s.Addr = Value{address, s.File}
		if own && !fromFile {
			s.Refused = &problem.Failure{Code: problem.ExitUsage, Err: ErrRefused, Text: fmt.Sprintf("%s must not go to %s, the address in %s: "+
				"give that address with --addr or BROKERD_ADDR, or put the credential into the file",
				strings.Join(env.proofs(), " and "), address, s.File)}
		}
	} else if own {
		return nil
	}
	s.CredentialFile = Value{file.Values["credential_file"], s.File}
	s.TLS.Cert, s.TLS.Key = file.Values["tls_cert"], file.Values["tls_key"]
	return nil
}

// proofs returns the variables that name a credential or a certificate.
func (e Environment) proofs() (names []string) {
	for _, name := range []string{"BROKERD_CREDENTIAL_FILE", "BROKERD_TLS_CERT", "BROKERD_TLS_KEY"} {
		if e.Get(name) != "" {
			names = append(names, name)
		}
	}
	return names
}

// ForChildren returns the variables with which a command that brokerctl runs connects as this run does,
// except the address.
func (s *Settings) ForChildren(env Environment) (variables []string) {
	for _, pair := range [][2]string{
		{"BROKERD_CREDENTIAL_FILE", s.CredentialFile.Value}, {"BROKERD_TLS_CA", s.TLS.CA},
		{"BROKERD_TLS_CERT", s.TLS.Cert}, {"BROKERD_TLS_KEY", s.TLS.Key},
	} {
		if env.Get(pair[0]) != pair[1] {
			variables = append(variables, fmt.Sprintf("%s=%s", pair[0], pair[1]))
		}
	}
	return variables
}
