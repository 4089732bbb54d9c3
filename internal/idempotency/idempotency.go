package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// keep is for how much uptime of the broker an answer is kept.
const keep = time.Hour

// A Request identifies one request of one caller. The zero value is a request without an id.
type Request struct {
	Session string // name of the session
	Caller  string // name of the agent, or "system"
	RPC     string
	ID      string // a UUID; empty = may happen again
	Hash    []byte // of the request without its wait, which may be shorter when the request is repeated
}

// Of returns the Request of a call. It validates the id (fault.Invalid, field request_id). Call it
// before the writer: hashing a large request takes its time.
func Of(ctx context.Context, rpc, id string, body proto.Message) (Request, error) {
	if id == "" {
		return Request{}, nil
	}
	if _, err := parse(id); err != nil {
		return Request{}, fault.Field("request_id", "is not a UUID such as 0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f")
	}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(withoutWait(body))
	if err != nil {
		return Request{}, fmt.Errorf("hash request: %w", err)
	}
	sum := sha256.Sum256(wire)
	who := identity.FromContext(ctx)
	return Request{Session: who.Session, Caller: who.Name(), RPC: rpc, ID: id, Hash: sum[:]}, nil
}

// withoutWait returns a request that does not wait.
func withoutWait(m proto.Message) proto.Message {
	field := m.ProtoReflect().Descriptor().Fields().ByName("wait")
	if field == nil || !m.ProtoReflect().Has(field) {
		return m
	}
	m = proto.Clone(m) // its reader waits
	m.ProtoReflect().Clear(field)
	return m
}

// Do runs fn, and keeps the answer that it leaves behind; answer is a pointer to what JSON can carry.
// Do empties the answer first, because a function of the writer can run twice.
// If the request has been seen before, fn is not run, answer is filled with what was kept, and seen is
// true. fault.Exists (REQUEST_ID_REUSED) if the id was seen with another body. Errors of fn are
// returned as they are, and nothing is kept.
func (r Request) Do(tx *store.Tx, answer any, fn func() error) (seen bool, err error) {
	reflect.ValueOf(answer).Elem().SetZero()
	if r.ID == "" {
		return false, fn()
	}
	id, err := parse(r.ID)
	if err != nil {
		return false, err
	}
	seen, err = r.recall(tx, id, answer)
	if seen || err != nil {
		return seen, err
	}
	if err := fn(); err != nil {
		return false, err
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return false, fmt.Errorf("keep answer of request %s: %w", r.ID, err)
	}
	tx.Exec(insertRequest, id, r.Session, r.Caller, r.RPC, tx.Uptime(), r.Hash, text)
	tx.Exec(deleteOldest, tx.Uptime()-keep)
	return false, nil
}

// Drain runs a function of the writer in the lane of what ends work: fn once for the request, as Do does.
func (r Request) Drain(ctx context.Context, st *store.Store, answer any, fn func(*store.Tx) error) error {
	return st.Drain(ctx, func(tx *store.Tx) error {
		_, err := r.Do(tx, answer, func() error { return fn(tx) })
		return err
	})
}

// Forget removes the kept answer of the request, because its effect was undone.
func (r Request) Forget(tx *store.Tx) error {
	if r.ID == "" {
		return nil
	}
	id, err := parse(r.ID)
	if err != nil {
		return err
	}
	tx.Exec(deleteKept, id, r.Session, r.Caller, r.RPC)
	return nil
}

// recall looks for the kept answer of the request.
func (r Request) recall(tx *store.Tx, id []byte, answer any) (bool, error) {
	var number int64
	var keptAt time.Duration
	var hash, text []byte
	err := tx.QueryRow(selectRequest, id, r.Session, r.Caller, r.RPC).Scan(&number, &keptAt, &hash, &text)
	if errors.Is(err, store.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for request %s: %w", r.ID, err)
	}
	if keptAt < tx.Uptime()-keep {
		tx.Exec(deleteRequest, number)
		return false, nil
	}
	if !bytes.Equal(hash, r.Hash) {
		return false, fault.New(fault.Exists, "REQUEST_ID_REUSED",
			"request_id %s was used in the last hour for another request: use a new id for a new request", r.ID)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return false, fmt.Errorf("read kept answer of request %s: %w", r.ID, err)
	}
	return true, nil
}

// parse wants the usual 36 characters; other spellings of the same id would only hide mistakes.
func parse(id string) ([]byte, error) {
	if len(id) != 36 {
		return nil, errors.New("not 36 characters")
	}
	u, err := uuid.Parse(id)
	return u[:], err
}
