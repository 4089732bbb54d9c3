package harness

import "golang.org/x/sys/unix"

// look asks the kernel (sysctl kern.proc.pid).
func look(id int) (known, error) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", id)
	if err != nil {
		return known{}, err
	}
	start := info.Proc.P_starttime
	return known{
		Process: Process{ID: id, Start: uint64(start.Sec)*1_000_000 + uint64(start.Usec)},
		parent:  int(info.Eproc.Ppid), name: unix.ByteSliceToString(info.Proc.P_comm[:]),
	}, nil
}
