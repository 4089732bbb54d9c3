package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"slices"
	"strconv"
	"sync"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// Limits of logins.
const (
	linkTime  = 2 * time.Minute
	tokenTime = 12 * time.Hour
	mostLinks = 100 // unused ones
)

// loginLinks are the unused login links, oldest first. They are in memory only.
type loginLinks struct {
	mu   sync.Mutex // guards open
	open []loginLink
}

// A loginLink is a link until its use.
type loginLink struct {
	sum     [sha256.Size]byte
	until   time.Time
	access  identity.Access
	session string
}

// A LoginLink is the secret of a new link, and when it expires.
type LoginLink struct {
	Secret string
	Until  time.Time
}

// A Login is the credential that a link was exchanged for.
type Login struct {
	Credential Credential
	Token      string
	Session    string // of the link
}

// CreateLoginLink returns a secret that Login accepts once within linkTime. Errors: fault.NotFound for
// the session, fault.Exhausted (TOO_MANY_LOGIN_LINKS).
func (r *Registry) CreateLoginLink(ctx context.Context, access identity.Access, session string) (LoginLink, error) {
	err := r.store.Read(ctx, func(snap *store.Snapshot) error {
		_, err := r.dir.SessionID(snap, session)
		return err
	})
	if err != nil {
		return LoginLink{}, err
	}
	now := r.clock.Now()
	created := LoginLink{Secret: newSecret(), Until: now.Add(linkTime)}
	r.links.mu.Lock()
	defer r.links.mu.Unlock()
	r.links.removeExpired(now)
	if len(r.links.open) >= mostLinks {
		e := fault.New(fault.Exhausted, "TOO_MANY_LOGIN_LINKS",
			"%d login links are unused, which is the limit: use one, or wait until the oldest expires", mostLinks)
		e.RetryAfter = r.links.open[0].until.Sub(now)
		return LoginLink{}, e.With("limit", "login_links").With("login_links", strconv.Itoa(mostLinks))
	}
	r.links.open = append(r.links.open,
		loginLink{sum: sha256.Sum256([]byte(created.Secret)), until: created.Until, access: access, session: session})
	return created, nil
}

// Login exchanges the secret of a link for a credential. Whatever the outcome, the link cannot be used
// again. Errors: fault.Unauthenticated (LOGIN_LINK_INVALID), and those of Issue.
func (r *Registry) Login(ctx context.Context, secret string) (Login, error) {
	link, valid := r.links.take(sha256.Sum256([]byte(secret)), r.clock.Now())
	if !valid {
		return Login{}, fault.New(fault.Unauthenticated, "LOGIN_LINK_INVALID",
			"the login link was used before, is older than 2 minutes, or is unknown: create another one")
	}
	d := Draft{Access: link.access, Description: "dashboard", TTL: tokenTime, Login: true}
	if link.access != identity.Operator {
		d.Session = link.session
	}
	issued, err := r.Issue(ctx, idempotency.Request{}, d)
	return Login{Credential: issued.Credential, Token: issued.Secret, Session: link.session}, err
}

// Logout revokes the credential of a login, which the caller presents. Errors: fault.Precondition
// (NOT_A_LOGIN) for a caller with another identity.
func (r *Registry) Logout(ctx context.Context, c identity.Caller) error {
	if c.Login == 0 {
		return fault.New(fault.Precondition, "NOT_A_LOGIN",
			"the call presents no credential of a login link; an operator revokes other credentials")
	}
	_, err := r.Revoke(ctx, idempotency.Request{}, name(c.Login), "logged out")
	return err
}

// take removes the link with a hash and returns it. It compares with every link, in constant time.
func (l *loginLinks) take(sum [sha256.Size]byte, now time.Time) (found loginLink, valid bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeExpired(now)
	at := -1
	for i := range l.open {
		if subtle.ConstantTimeCompare(sum[:], l.open[i].sum[:]) == 1 {
			at = i
		}
	}
	if at < 0 {
		return loginLink{}, false
	}
	found = l.open[at]
	l.open = slices.Delete(l.open, at, at+1)
	return found, true
}

// removeExpired removes the links that have expired. The caller holds the mutex.
func (l *loginLinks) removeExpired(now time.Time) {
	l.open = slices.DeleteFunc(l.open, func(link loginLink) bool { return !now.Before(link.until) })
}
