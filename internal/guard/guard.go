// Package guard starts the goroutines that a client's call needs besides its own.
package guard

import (
	"fmt"

	"go.uber.org/zap"
)

// Go runs fn in a new goroutine and passes its error to done. If fn panics, Go logs the panic with
// its stack and passes done an error that a client receives as INTERNAL. rpc recovers only the
// panics of a call's own goroutine; a panic of another goroutine would end the process. done must
// not panic.
func Go(log *zap.Logger, fn func() error, done func(error)) {
	go func() { done(run(log, fn)) }()
}

func run(log *zap.Logger, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("a call panicked", zap.Any("panic", p), zap.Stack("stack"))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return fn()
}
