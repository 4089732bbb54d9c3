//go:build !linux && !darwin

package harness

import "errors"

// look knows nothing: then each session has the name that setup wrote.
func look(int) (known, error) { return known{}, errors.ErrUnsupported }
