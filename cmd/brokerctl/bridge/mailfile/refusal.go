package mailfile

import (
	"errors"
	"fmt"
)

// A Refusal says why the broker or the bridge will never accept a file as a message.
type Refusal string

// Refusalf returns a refusal with a formatted reason.
func Refusalf(format string, args ...any) Refusal { return Refusal(fmt.Sprintf(format, args...)) }

// Error returns the reason.
func (r Refusal) Error() string { return string(r) }

// Rejected reports whether an error says that a file or line will never be a message.
func Rejected(err error) bool {
	var r Refusal
	return errors.As(err, &r) || errors.Is(err, ErrIncomplete)
}

// ErrIncomplete says that a file may still be being written.
var ErrIncomplete = errors.New("the file is not complete")
