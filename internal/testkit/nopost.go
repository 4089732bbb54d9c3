package testkit

import (
	"context"

	"brokerd/internal/identity"
	"brokerd/internal/work"
)

type sender = work.Post // an embedded field named Post would hide the method

// NoPost is a post that permits every call to send, and cannot send.
type NoPost struct{ sender }

// Admit implements work.Post.
func (NoPost) Admit(context.Context, identity.Caller, int) error { return nil }
