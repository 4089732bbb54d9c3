// Package problem has the exit codes of brokerctl and the errors that know theirs.
//
// An error without a code ends a command with ExitError. Package command writes what people and scripts read of an
// error.
package problem
