package harness

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Process is a process of this machine: its id, and what tells it from a later process with the same id. The zero
// Process stands for none, and is never alive.
type Process struct {
	ID    int    `json:"id"`
	Start uint64 `json:"start"` // when it started, in a unit of the operating system
}

// Alive reports whether the process runs.
func (p Process) Alive() bool {
	if p.ID <= 0 {
		return false
	}
	now, err := look(p.ID)
	return err == nil && now.Start == p.Start
}

// shells are the programs between a coding agent and what it starts. Their names may begin with a dash.
var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "fish", "ash", "busybox", "timeout", "env", "nice"}

// known is what the operating system says of a process.
type known struct {
	Process
	parent int
	name   string
}

// A Known is a process with the name of its program.
type Known struct {
	Process
	Name string
}

// Ancestors returns the processes above this one that are no shells, the nearest first, at most 8.
func Ancestors() []Known {
	var found []Known
	id := os.Getppid()
	for range 32 {
		if id <= 1 || len(found) == 8 {
			break
		}
		p, err := look(id)
		if err != nil {
			break
		}
		if name := filepath.Base(p.name); !slices.Contains(shells, strings.TrimPrefix(name, "-")) {
			found = append(found, Known{p.Process, name})
		}
		id = p.parent
	}
	return found
}

// At returns the process with an id; the zero Process if there is none.
func At(id int) Process {
	p, err := look(id)
	if err != nil {
		return Process{}
	}
	return p.Process
}
