package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// FindDaemon returns the path of brokerd: beside brokerctl, else in PATH.
func FindDaemon(c *Caller) (string, error) {
	if self, err := os.Executable(); err == nil {
		if beside, err := exec.LookPath(filepath.Join(filepath.Dir(self), "brokerd")); err == nil {
			return beside, nil
		}
	}
	path, err := c.Env.LookPath("brokerd")
	if err != nil {
		return "", fmt.Errorf("brokerd is neither beside brokerctl nor in PATH; build both with `make build`")
	}
	return path, nil
}
