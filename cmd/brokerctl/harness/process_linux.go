package harness

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// look reads /proc/ID/stat: the id, the name in parentheses, the state, the parent, and as field 22 the start in
// clock ticks since the boot (proc_pid_stat(5)).
func look(id int) (known, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id))
	if err != nil {
		return known{}, err
	}
	open, shut := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || shut < open {
		return known{}, fmt.Errorf("no name in /proc/%d/stat", id)
	}
	p := known{Process: Process{ID: id}, name: string(stat[open+1 : shut])}
	fields := bytes.Fields(stat[shut+1:]) // from field 3 on
	if len(fields) < 20 {
		return known{}, fmt.Errorf("%d fields in /proc/%d/stat", len(fields)+2, id)
	}
	if p.parent, err = strconv.Atoi(string(fields[1])); err != nil {
		return known{}, err
	}
	if state := fields[0][0]; state == 'Z' || state == 'X' {
		return known{}, os.ErrProcessDone
	}
	p.Start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return p, err
}
