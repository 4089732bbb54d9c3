//go:build !linux

package postgres

import "syscall"

// limitSilence does nothing here: the keepalives alone find a connection that was cut.
func limitSilence(string, string, syscall.RawConn) error { return nil }
