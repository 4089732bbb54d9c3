package admin

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

// processUsage returns the processor time that this process has used since its start, and the
// bytes of physical memory that it occupies. A figure that the system does not report is 0.
func processUsage() (cpu time.Duration, memory int64) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err == nil {
		cpu = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	statm, err := os.ReadFile("/proc/self/statm") // see proc_pid_statm(5): the second number counts resident pages
	if fields := bytes.Fields(statm); err == nil && len(fields) > 1 {
		pages, _ := strconv.ParseInt(string(fields[1]), 10, 64) // 0 if it is no number
		memory = pages * int64(os.Getpagesize())
	}
	return cpu, memory
}
