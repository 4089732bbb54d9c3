//go:build !linux

package postgrestest

import "syscall"

// unprivileged returns how a server is started. Where it is not Linux, tests do not run as root.
func unprivileged(string) (*syscall.SysProcAttr, error) { return nil, nil }

// parent returns the folder of temporary files.
func parent() string { return "" }
