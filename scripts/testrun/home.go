package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// environment returns this process's environment for programs whose home folder is home. Go keeps its
// settings and caches.
func environment(ctx context.Context, home string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "-json", "GOCACHE", "GOENV", "GOMODCACHE", "GOPATH").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	set := map[string]string{}
	if err := json.Unmarshal(out, &set); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	set["HOME"] = home
	set["HISTFILE"] = os.DevNull
	for name, folder := range map[string]string{
		"XDG_CACHE_HOME": ".cache", "XDG_CONFIG_HOME": ".config", "XDG_DATA_HOME": ".local/share", "XDG_STATE_HOME": ".local/state",
	} {
		set[name] = filepath.Join(home, folder)
		if err := os.MkdirAll(set[name], 0o700); err != nil {
			return nil, err
		}
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, replaced := set[name]
		return replaced || name == "XDG_RUNTIME_DIR"
	})
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	return env, nil
}
