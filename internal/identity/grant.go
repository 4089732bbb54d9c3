package identity

import "context"

// A Grant is the identity and the rights that a credential proves. The broker shares one Grant among
// all calls of a credential: do not change it.
type Grant struct {
	Access  Access
	Session string // the only session of the credential; empty = any
	Agent   string // the only agent that the credential may act as; empty for observers and operators
	Role    string // the only role that the agent may register with; empty = any
	Login   int64  // the id of the credential if Login has issued it, else 0
	// Ended is done as soon as the credential no longer counts; its cause is the error that calls end
	// with. A nil Ended is never done.
	Ended context.Context
}
