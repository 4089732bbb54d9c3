// Package msgid has the names of messages and claims: ids, revisions, and claim ids. It is a leaf, which the core of
// messages, the packages around it and their service use.
package msgid

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"brokerd/internal/validate"
)

// ClaimID returns the id of the nth claim of a message.
func ClaimID(revision int64, number int) string {
	return strconv.FormatInt(revision, 10) + "." + strconv.Itoa(number)
}

// An ID is a message id: a UUID of version 7 whose last 48 bits are the message's revision, so that it
// needs no further index (RFC 9562 leaves these bits to the maker).
type ID [16]byte

// New returns the id of the message with this revision. 26 bits are random, so that two brokers do not
// give the same id in the same millisecond.
func New(at time.Time, revision int64) (id ID) {
	random := rand.Uint32()
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16|0x7000|uint64(random&0xfff))
	binary.BigEndian.PutUint64(id[8:], 0x8000_0000_0000_0000|uint64(random>>12&0x3fff)<<48|uint64(revision)&(1<<48-1))
	return id
}

// String returns the id in the usual form with hyphens.
func (id ID) String() string {
	var b [36]byte
	return string(id.AppendTo(b[:0]))
}

// AppendTo appends what String returns.
func (id ID) AppendTo(b []byte) []byte {
	b = append(hex.AppendEncode(b, id[0:4]), '-')
	b = append(hex.AppendEncode(b, id[4:6]), '-')
	b = append(hex.AppendEncode(b, id[6:8]), '-')
	b = append(hex.AppendEncode(b, id[8:10]), '-')
	return hex.AppendEncode(b, id[10:])
}

func (id ID) revision() int64 { return int64(binary.BigEndian.Uint64(id[8:]) & (1<<48 - 1)) }

// A Ref is how a caller names a message or a claim: a message id, a revision, or a claim id.
type Ref struct {
	Text     string // as the caller wrote it
	Revision int64
	ID       ID  // zero unless it was a message id
	Claim    int // 0 unless it was a claim id
}

// ParseRef reads a message id, a revision ("4711") or a claim id ("4711.2").
func ParseRef(s string) (Ref, bool) {
	ref := Ref{Text: s}
	if len(s) == 36 {
		if u, err := uuid.Parse(s); err == nil {
			ref.ID = ID(u)
			ref.Revision = ref.ID.revision()
			return ref, ref.Revision > 0
		}
	}
	revision, number, isClaim := strings.Cut(s, ".")
	var ok bool
	if ref.Revision, ok = digits(revision); !ok {
		return Ref{}, false
	}
	if isClaim {
		n, ok := digits(number)
		if !ok || n > 1<<31-1 {
			return Ref{}, false
		}
		ref.Claim = int(n)
	}
	return ref, true
}

// digits reads a positive number written without sign or leading zero.
func digits(s string) (int64, bool) {
	if s == "" || s[0] < '1' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// CheckRef checks a field of a request that names a message, or with claims a message or a claim.
func CheckRef(c *validate.Check, field, s string, claims bool) Ref {
	ref, ok := ParseRef(s)
	switch {
	case s == "":
		c.Fail(field, "is empty; a message id or revision is required")
	case !ok && claims:
		c.Fail(field, "%.60q is neither a claim id (4711.2), a message id (a UUID) nor a revision (4711)", s)
	case !ok || ref.Claim != 0 && !claims:
		c.Fail(field, "%.60q is neither a message id (a UUID) nor a revision (4711)", s)
	}
	return ref
}

// CheckRefs checks a field with at most so many such names.
func CheckRefs(c *validate.Check, field string, ids []string, most int, claims bool) []Ref {
	c.Count(field, len(ids), most)
	refs := make([]Ref, 0, min(len(ids), most))
	for i, id := range ids[:min(len(ids), most)] {
		refs = append(refs, CheckRef(c, fmt.Sprintf("%s[%d]", field, i), id, claims))
	}
	return refs
}

// Names reports whether the ref can mean the message with this id.
func (r Ref) Names(id ID) bool { return r.ID == ID{} || r.ID == id }
