package tracing

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// Size is the length of a traceparent of version 00 in bytes.
const Size = 55

// A Context names a span: its trace, its id, and whether the trace is recorded. The zero value
// names none.
type Context struct {
	Trace   [16]byte
	Span    [8]byte
	Sampled bool
}

// Parse reads a W3C traceparent. It accepts later versions as the specification says: their first
// fields are those of version 00.
func Parse(s string) (Context, bool) {
	var c Context
	var version, flags [1]byte
	if len(s) < Size || s[2] != '-' || s[35] != '-' || s[52] != '-' ||
		!decode(version[:], s[:2]) || !decode(c.Trace[:], s[3:35]) || !decode(c.Span[:], s[36:52]) || !decode(flags[:], s[53:55]) {
		return Context{}, false
	}
	longer := len(s) > Size
	if version[0] == 0xff || version[0] == 0 && longer || longer && s[55] != '-' {
		return Context{}, false
	}
	c.Sampled = flags[0]&1 != 0
	if !c.Valid() {
		return Context{}, false
	}
	return c, true
}

// decode reads lower-case hexadecimal digits.
func decode(into []byte, s string) bool {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(into, []byte(s))
	return err == nil
}

// Valid reports whether the context names a span.
func (c Context) Valid() bool { return c.Trace != [16]byte{} && c.Span != [8]byte{} }

// String returns the context as a W3C traceparent of version 00; empty if it names no span.
func (c Context) String() string {
	if !c.Valid() {
		return ""
	}
	b := append(make([]byte, 0, Size), "00-"...)
	b = append(hex.AppendEncode(b, c.Trace[:]), '-')
	b = append(hex.AppendEncode(b, c.Span[:]), '-')
	if c.Sampled {
		return string(append(b, "01"...))
	}
	return string(append(b, "00"...))
}

// Derive returns the context of a child whose id follows from the name of what the span is about.
// The same context and name give the same id, also after a restart.
func (c Context) Derive(name string) Context {
	sum := sha256.Sum256(append(append(make([]byte, 0, 128), c.Trace[:]...), name...))
	copy(c.Span[:], sum[:])
	return c
}

// child returns the context of a new child.
func (c Context) child() Context {
	binary.BigEndian.PutUint64(c.Span[:], 1+rand.Uint64N(1<<64-1))
	return c
}

type key struct{}

// NewContext returns a context that carries the caller's span.
func NewContext(ctx context.Context, c Context) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// FromContext returns the caller's span; the zero Context if there is none.
func FromContext(ctx context.Context) Context {
	c, _ := ctx.Value(key{}).(Context)
	return c
}
