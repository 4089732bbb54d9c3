//go:build !linux

package vendortest

import "syscall"

// kill kills a process that is no child of this one.
func kill(id int) { _ = syscall.Kill(id, syscall.SIGKILL) }
