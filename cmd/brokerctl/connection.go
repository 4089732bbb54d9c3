package main

import (
	"cmp"
	"fmt"
	"strings"

	"brokerd/client"
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
func (s *settings) chooseConnection(c *cli, file config) error {
	env := c.env
	s.addr = setting{c.global.addr, "--addr"}
	if s.addr.value == "" {
		s.addr = setting{env.get("BROKERD_ADDR"), "BROKERD_ADDR"}
	}
	s.credentialFile = setting{env.path(env.get("BROKERD_CREDENTIAL_FILE")), "BROKERD_CREDENTIAL_FILE"}
	s.tls = client.TLS{
		CA: env.path(env.get("BROKERD_TLS_CA")), Cert: env.path(env.get("BROKERD_TLS_CERT")),
		Key: env.path(env.get("BROKERD_TLS_KEY")), ServerName: env.get("BROKERD_TLS_SERVER_NAME"),
	}
	if s.addr.value != "" {
		return nil
	}
	s.addr = setting{}
	if !file.connects() {
		return nil
	}
	store, err := env.trustStore()
	if err != nil {
		return err
	}
	switch ok, err := store.trusts(s.file, file); {
	case err != nil:
		return err
	case !ok:
		s.refused = untrusted(s.file)
		return nil
	}
	if s.refused = file.leadsOut(s.file); s.refused != nil {
		return nil
	}
	s.tls.CA = cmp.Or(file.values["tls_ca"], s.tls.CA) // it is no secret
	own := s.credentialFile.value != "" || s.tls.Cert != "" || s.tls.Key != ""
	fromFile := file.proof() != ""
	if address := file.values["addr"]; address != "" {
		s.addr = setting{address, s.file}
		if own && !fromFile {
			s.refused = &failure{code: exitUsage, err: errRefused, text: fmt.Sprintf("%s must not go to %s, the address in %s: "+
				"give that address with --addr or BROKERD_ADDR, or put the credential into the file",
				strings.Join(env.proofs(), " and "), address, s.file)}
		}
	} else if own {
		return nil
	}
	s.credentialFile = setting{file.values["credential_file"], s.file}
	s.tls.Cert, s.tls.Key = file.values["tls_cert"], file.values["tls_key"]
	return nil
}

// proofs returns the variables that name a credential or a certificate.
func (e environment) proofs() (names []string) {
	for _, name := range []string{"BROKERD_CREDENTIAL_FILE", "BROKERD_TLS_CERT", "BROKERD_TLS_KEY"} {
		if e.get(name) != "" {
			names = append(names, name)
		}
	}
	return names
}

// forChildren returns the variables with which a command that brokerctl runs connects as this run does,
// except the address.
func (s *settings) forChildren(env environment) (variables []string) {
	for _, pair := range [][2]string{
		{"BROKERD_CREDENTIAL_FILE", s.credentialFile.value}, {"BROKERD_TLS_CA", s.tls.CA},
		{"BROKERD_TLS_CERT", s.tls.Cert}, {"BROKERD_TLS_KEY", s.tls.Key},
	} {
		if env.get(pair[0]) != pair[1] {
			variables = append(variables, fmt.Sprintf("%s=%s", pair[0], pair[1]))
		}
	}
	return variables
}
