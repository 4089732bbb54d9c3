package turn

import (
	"cmp"
	"errors"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
)

// Paths returns the paths of locks for names in a folder, "" = the working folder.
func Paths(c *command.Caller, dir string) (*client.Paths, error) {
	env := c.Env.Client()
	env.Dir = cmp.Or(c.Env.Path(dir), env.Dir)
	return env.Paths("")
}

// LockPaths returns the paths that the broker has for the names of files.
func LockPaths(c *command.Caller, names []string) ([]string, error) {
	known, err := Paths(c, "")
	if err != nil {
		return nil, err
	}
	paths, err := known.MapAll(names...)
	if err != nil {
		return nil, problem.Usagef("%v", err)
	}
	return paths, nil
}

// LockPathIn is LockPaths for a file that is named in a folder. inside is false for a file out of the session's root: no
// other agent asks for it there.
func LockPathIn(c *command.Caller, dir, file string) (path string, inside bool, err error) {
	known, err := Paths(c, dir)
	if err != nil {
		return "", false, err
	}
	path, err = known.Map(file)
	if outside := (*client.OutsideError)(nil); errors.As(err, &outside) {
		return "", false, nil
	}
	return path, err == nil, err
}

// LockMode returns the mode of a lock.
func LockMode(shared bool) pb.LockMode {
	if shared {
		return pb.LockMode_LOCK_MODE_SHARED
	}
	return pb.LockMode_LOCK_MODE_EXCLUSIVE
}
