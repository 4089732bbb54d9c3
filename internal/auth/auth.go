package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/netip"
	"time"

	"brokerd/internal/caller"
	"brokerd/internal/fault"
)

// A Registry recognises credentials. Its methods may be called concurrently.
type Registry struct {
	operatorSum [sha256.Size]byte // of the secret in the operator's file
	operator    caller.Grant
}

// New returns a registry that recognises the secret of the operator's file.
func New(operatorSecret string) *Registry {
	return &Registry{operatorSum: sha256.Sum256([]byte(operatorSecret)), operator: caller.Grant{Access: caller.Operator}}
}

// Identify returns the grant of a secret that a client presents; an empty secret is none. Errors:
// fault.Unauthenticated.
func (r *Registry) Identify(secret string, client netip.Addr, at time.Time) (*caller.Grant, error) {
	if secret == "" {
		return nil, r.Refuse(client, at, fault.New(fault.Unauthenticated, "CREDENTIAL_REQUIRED",
			"a call over TCP needs a credential; the operator's is in the file %s of the data folder", CredentialFile))
	}
	sum := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(sum[:], r.operatorSum[:]) == 1 {
		return &r.operator, nil
	}
	return nil, r.Refuse(client, at, fault.New(fault.Unauthenticated, "CREDENTIAL_UNKNOWN", "the credential is not valid for this broker"))
}

// Refuse returns the error that a client receives for a failed attempt.
func (r *Registry) Refuse(_ netip.Addr, _ time.Time, cause error) error { return cause }
