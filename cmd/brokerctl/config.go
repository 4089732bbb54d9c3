package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"

	"brokerd/client"
	"brokerd/internal/jsonform"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// configFile is the name of the file with the settings for its folder and all folders below.
const configFile = ".brokerd.yaml"

// Keys of a configFile. agents maps the names of the agents of the folder to agentKeys.
var (
	configKeys = []string{"addr", "session", "agents", "output", "start", "credential_file", "tls_ca", "tls_cert", "tls_key"}
	fileKeys   = []string{"credential_file", "tls_ca", "tls_cert", "tls_key"} // relative to the folder of the configFile
	agentKeys  = []string{"role", "capabilities", "labels", "attention", "hook_session"}
)

// config is the content of a configFile.
type config struct {
	values map[string]string
	given  map[string]string // values as the file has them: paths are relative to its folder
	agents map[string]map[string]string
}

// names returns the names of the agents in order.
func (f config) names() []string { return slices.Sorted(maps.Keys(f.agents)) }

// setting is a value with where it comes from: a flag, a variable, a file; "" if it is set nowhere.
type setting struct{ value, from string }

// settings are what flags, environment and file say together.
type settings struct {
	addr, session, agent, output, credentialFile setting
	tls                                          client.TLS

	file       string   // the configFile that was found; "" without one
	content    config   // of that file
	refused    error    // why no call can be made
	start      bool     // the MCP server and hooks start a broker if none runs
	otherAgent bool     // --agent names a different agent than environment and file
	base       string   // the name that setup gave the agent, if its session has another; else ""
	unchosen   []string // the agents of the file, if neither the caller nor the file chooses one of them
}

// settings returns the settings of this run: flags win over the environment, and that over the file.
func (c *cli) settings() (settings, error) {
	if c.found != nil {
		return *c.found, nil
	}
	path, file, err := c.folderConfig()
	if err != nil {
		return settings{}, err
	}
	choose := func(flag, given, variable, key string) setting {
		switch env := c.env.get(variable); {
		case given != "":
			return setting{given, flag}
		case env != "":
			return setting{env, variable}
		case file.values[key] != "":
			return setting{file.values[key], path}
		}
		return setting{}
	}
	g := c.global
	s := settings{
		file: path, content: file,
		session: choose("--session", g.session, "BROKERD_SESSION", "session"),
		output:  choose("--output", g.output, "BROKERD_OUTPUT", "output"),
	}
	if err := s.chooseConnection(c, file); err != nil {
		return settings{}, err
	}
	before := choose("", "", "BROKERD_AGENT", "")
	if before.value == "" {
		before = c.identity(file, path)
	}
	yields := g.yields && g.agent != "" && before.value != "" && before.from != path
	switch {
	case (g.agent != "" || g.operator) && !yields:
		s.agent = setting{g.agent, "--agent"}
	case before.value == "" && len(file.agents) > 0:
		s.unchosen = file.names()
	default:
		s.agent = before
	}
	s.otherAgent = s.agent.from == "--agent" && s.agent.value != before.value
	if err := c.nameSession(&s); err != nil {
		return settings{}, err
	}
	s.start = choose("", "", "BROKERD_START", "start").value == "true"
	c.found = &s
	return s, nil
}

// hookSession returns the session of the coding agent that this run belongs to, or "". Claude Code and Codex set
// a variable for the commands that their models run, with the session_id that their hooks receive.
func (c *cli) hookSession() string {
	return cmp.Or(c.hooked.ID, c.env.get("CLAUDE_CODE_SESSION_ID"), c.env.get("CODEX_SESSION_ID"))
}

// identity returns the agent of the file that this run acts as: the agent of the coding agent's
// session, or the only one.
func (c *cli) identity(file config, path string) setting {
	names := file.names()
	for _, name := range names {
		if id := file.agents[name]["hook_session"]; id != "" && id == c.hookSession() {
			return setting{name, path + ", hook session " + id}
		}
	}
	if len(names) == 1 {
		return setting{names[0], path}
	}
	return setting{}
}

// folderConfig returns the configFile of the working folder, and its path; without one, "".
func (c *cli) folderConfig() (string, config, error) {
	if c.global.noConfig {
		return "", config{}, nil
	}
	path, err := c.findConfig()
	if path == "" || err != nil {
		return "", config{}, err
	}
	file, err := readConfig(path)
	if err != nil {
		return "", config{}, usagef("%s: %v", path, err)
	}
	return path, file, nil
}

// findConfig looks for a configFile from the working folder upwards and returns its path, or "". A file that
// belongs to neither the user, root, nor the owner of the working folder is passed over: in a folder that all
// may write to, anybody could say where calls go.
func (c *cli) findConfig() (string, error) {
	dir, err := c.env.dir()
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

// readConfig reads a configFile. Its error names an unknown key. Another person may have written the
// file, and a language model may read the error, which therefore quotes single words of the file only.
func readConfig(path string) (config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return config{}, err
	}
	return parseConfig(path, text)
}

// parseConfig is readConfig for the text of the file at path.
func parseConfig(path string, text []byte) (config, error) {
	nodes := map[string]yaml.Node{}
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&nodes); err != nil && !errors.Is(err, io.EOF) {
		return config{}, fmt.Errorf("%s: want YAML with the keys %s, each once", // err can quote the file
			cmp.Or(yamlLine.FindString(err.Error()), "line 1"), strings.Join(configKeys, ", "))
	}
	read := config{values: map[string]string{}, given: map[string]string{}}
	for key, node := range nodes {
		if !slices.Contains(configKeys, key) {
			return config{}, unknownKey(node.Line, key, configKeys)
		}
		if key == "agents" {
			if err := node.Decode(&read.agents); err != nil {
				return config{}, fmt.Errorf("line %d: agents must be names with settings, such as builder-1: {role: builder}",
					node.Line)
			}
			continue
		}
		var value string
		if err := node.Decode(&value); err != nil {
			return config{}, fmt.Errorf("line %d: %s must be one value", node.Line, key)
		}
		read.values[key], read.given[key] = value, value
	}
	if start := read.values["start"]; start != "" && start != "true" && start != "false" {
		return config{}, fmt.Errorf("line %d: start must be true or false", nodes["start"].Line)
	}
	if session := read.values["session"]; session != "" && !validName.MatchString(session) {
		return config{}, badName(nodes["session"].Line, "session")
	}
	for _, name := range read.names() {
		line := lineOf(nodes["agents"], name)
		if !validName.MatchString(name) {
			return config{}, badName(line, "a key of agents")
		}
		for key, value := range read.agents[name] {
			if !slices.Contains(agentKeys, key) {
				return config{}, unknownKey(line, key, agentKeys)
			}
			if key == "role" && value != "" && !validName.MatchString(value) {
				return config{}, badName(line, "role")
			}
			if modes := pb.Attention(0).Descriptor(); key == "attention" && !slices.Contains(jsonform.EnumNames(modes), value) {
				return config{}, fmt.Errorf("line %d: attention must be one of %s", line, strings.Join(jsonform.EnumNames(modes), ", "))
			}
			if key == "labels" {
				if _, err := labelsIn(value); err != nil {
					return config{}, fmt.Errorf("line %d: %w", line, err)
				}
			}
		}
	}
	for _, key := range fileKeys {
		if file := read.values[key]; file != "" && !filepath.IsAbs(file) {
			read.values[key] = filepath.Join(filepath.Dir(path), file)
		}
	}
	return read, nil
}

// lineOf returns the line of a key of a mapping.
func lineOf(mapping yaml.Node, key string) int {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i].Line
		}
	}
	return mapping.Line // a merge key adds it
}

// yamlLine matches the place in an error of the YAML package.
var yamlLine = regexp.MustCompile(`line [0-9]+`)

// validName matches a name of an agent, a role or a session, as the broker checks it.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// nameForm says in words what validName matches.
const nameForm = "use 1 to 128 letters, digits, '.', '_', ':' or '-', beginning with a letter or digit"

func badName(line int, what string) error {
	return fmt.Errorf("line %d: %s is not a valid name: %s", line, what, nameForm)
}

func unknownKey(line int, key string, known []string) error {
	return fmt.Errorf("line %d: unknown key%s; known are %s", line, quoteWord(key), strings.Join(known, ", "))
}

// quoteWord quotes a text of a configFile, after a space, if it is a single word; otherwise it returns "".
func quoteWord(s string) string {
	if !prompt.Word(s) {
		return ""
	}
	return fmt.Sprintf(" %q", s)
}
