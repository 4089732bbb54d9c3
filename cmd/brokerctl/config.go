package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
)

// configFile says, for the folder it lies in and all below, which broker is meant and as whom to speak.
const configFile = ".brokerd.yaml"

// configKeys are the keys that a configFile may have.
var configKeys = []string{"addr", "session", "agent", "output", "credential_file"}

// setting is a value with where it comes from: a flag, a variable, a file; "" if it is set nowhere.
type setting struct{ value, from string }

// settings are what flags, environment and file say together.
type settings struct {
	addr, session, agent, output, credentialFile setting

	file        string // the configFile that was found; "" without one
	otherAgent  bool   // --agent names another one than environment and file do
	agentBefore string // whom they name
}

// settings returns what holds: flags win over the environment, and that over the file.
func (c *cli) settings() (settings, error) {
	if c.found != nil {
		return *c.found, nil
	}
	path, err := findConfig()
	if err != nil {
		return settings{}, err
	}
	file := map[string]string{}
	if path != "" {
		if file, err = readConfig(path); err != nil {
			return settings{}, usagef("%s: %v", path, err)
		}
	}
	choose := func(flag, given, variable, key string) setting {
		switch env := os.Getenv(variable); {
		case given != "":
			return setting{given, flag}
		case env != "":
			return setting{env, variable}
		case file[key] != "":
			return setting{file[key], path}
		}
		return setting{}
	}
	g := c.global
	s := settings{
		file:           path,
		addr:           choose("--addr", g.addr, "BROKERD_ADDR", "addr"),
		session:        choose("--session", g.session, "BROKERD_SESSION", "session"),
		output:         choose("--output", g.output, "BROKERD_OUTPUT", "output"),
		credentialFile: choose("", "", "BROKERD_CREDENTIAL_FILE", "credential_file"),
		agentBefore:    choose("", "", "BROKERD_AGENT", "agent").value,
	}
	s.agent = choose("--agent", g.agent, "BROKERD_AGENT", "agent")
	if g.operator {
		s.agent = setting{"", "--agent"}
	}
	s.otherAgent = s.agent.from == "--agent" && s.agent.value != s.agentBefore
	c.found = &s
	return s, nil
}

// findConfig looks for a configFile from the working folder upwards and returns its path, or "". A file that belongs to
// neither the user, root, nor the owner of the working folder is passed over: in a folder that all may write to, anybody
// could say where calls go.
func findConfig() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("look for %s: %w", configFile, err)
	}
	owners := []uint32{0, uint32(os.Getuid())}
	if info, err := os.Stat(dir); err == nil {
		owners = append(owners, owner(info))
	}
	for {
		path := filepath.Join(dir, configFile)
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() && slices.Contains(owners, owner(info)) {
			return path, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return "", fmt.Errorf("look for %s: %w", configFile, err)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", nil
		}
		dir = parent
	}
}

// owner returns the user id that a file belongs to.
func owner(info fs.FileInfo) uint32 {
	return info.Sys().(*syscall.Stat_t).Uid
}

// readConfig reads a configFile. Keys that nobody knows are named.
func readConfig(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	nodes := map[string]yaml.Node{}
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&nodes); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	values := map[string]string{}
	for key, node := range nodes {
		if !slices.Contains(configKeys, key) {
			return nil, fmt.Errorf("line %d: unknown key %q; known are %s", node.Line, key, strings.Join(configKeys, ", "))
		}
		var value string
		if err := node.Decode(&value); err != nil {
			return nil, fmt.Errorf("line %d: %s must be one value", node.Line, key)
		}
		values[key] = value
	}
	if file := values["credential_file"]; file != "" && !filepath.IsAbs(file) {
		values["credential_file"] = filepath.Join(filepath.Dir(path), file)
	}
	return values, nil
}
