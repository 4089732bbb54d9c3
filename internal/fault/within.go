package fault

import (
	"errors"
	"fmt"
	"slices"
)

// Indexed says which draft an error is about: by the names of its fields, or in front of its text if there are
// several drafts.
func Indexed(err error, i, of int) error {
	at := fmt.Sprintf("messages[%d]", i)
	err = Within(at, err)
	var f *Error
	if of == 1 || !errors.As(err, &f) || len(f.Violations) > 0 {
		return err
	}
	clone := *f
	clone.Message = at + ": " + f.Message
	return &clone
}

// Within puts the name of a message in front of the fields of it that an error names.
func Within(at string, err error) error {
	var f *Error
	if !errors.As(err, &f) || len(f.Violations) == 0 {
		return err
	}
	fields := slices.Clone(f.Violations)
	for n := range fields {
		fields[n].Field = at + "." + fields[n].Field
	}
	named := Fields(fields)
	named.Reason = f.Reason
	return named
}
