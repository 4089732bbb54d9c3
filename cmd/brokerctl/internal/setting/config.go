package setting

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
	"brokerd/cmd/brokerctl/harness"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// BridgeNamespace is the namespace of the state in which bridges keep their keys.
const BridgeNamespace = "bridge"

// ConfigFile is the name of the file with the settings for its folder and all folders below.
const ConfigFile = ".brokerd.yaml"

// Keys of a configFile. agents maps the names of the agents of the folder to agentKeys.
var (
	configKeys = []string{"addr", "session", "agents", "output", "start", "credential_file", "tls_ca", "tls_cert", "tls_key"}
	FileKeys   = []string{"credential_file", "tls_ca", "tls_cert", "tls_key"} // relative to the folder of the configFile
	agentKeys  = []string{"role", "capabilities", "labels", "attention", "hook_session"}
)

// Config is the content of a configFile.
type Config struct {
	Values map[string]string
	given  map[string]string // values as the file has them: paths are relative to its folder
	Agents map[string]map[string]string
}

// Names returns the names of the agents in order.
func (f Config) Names() []string { return slices.Sorted(maps.Keys(f.Agents)) }

// Value is a value with where it comes from: a flag, a variable, a file; "" if it is set nowhere.
type Value struct{ Value, From string }

// Settings are what flags, environment and file say together.
type Settings struct {
	Addr, Session, Agent, Output, CredentialFile Value
	TLS                                          client.TLS

	File       string   // the configFile that was found; "" without one
	Content    Config   // of that file
	Refused    error    // why no call can be made
	Start      bool     // the MCP server and hooks start a broker if none runs
	OtherAgent bool     // --agent names a different agent than environment and file
	base       string   // the name that setup gave the agent, if its session has another; else ""
	Unchosen   []string // the agents of the file, if neither the caller nor the file chooses one of them
}

// A Resolver finds the settings of one run.
type Resolver struct {
	Env    Environment
	Global Options
	Hooked harness.Session // of the coding agent whose hook runs this; zero outside of hooks
	Found  *Settings       // once they were read
}

// Settings returns the settings of this run: flags win over the environment, and that over the file.
func (r *Resolver) Settings() (Settings, error) {
	if r.Found != nil {
		return *r.Found, nil
	}
	path, file, err := r.FolderConfig()
	if err != nil {
		return Settings{}, err
	}
	choose := func(flag, given, variable, key string) Value {
		switch env := r.Env.Get(variable); {
		case given != "":
			return Value{given, flag}
		case env != "":
			return Value{env, variable}
		case file.Values[key] != "":
			return Value{file.Values[key], path}
		}
		return Value{}
	}
	g := r.Global
	s := Settings{
		File: path, Content: file,
		Session: choose("--session", g.Session, "BROKERD_SESSION", "session"),
		Output:  choose("--output", g.Output, "BROKERD_OUTPUT", "output"),
	}
	if err := s.chooseConnection(r, file); err != nil {
		return Settings{}, err
	}
	before := choose("", "", "BROKERD_AGENT", "")
	if before.Value == "" {
		before = r.identity(file, path)
	}
	yields := g.Yields && g.Agent != "" && before.Value != "" && before.From != path
	switch {
	case (g.Agent != "" || g.Operator) && !yields:
		s.Agent = Value{g.Agent, "--agent"}
	case before.Value == "" && len(file.Agents) > 0:
		s.Unchosen = file.Names()
	default:
		s.Agent = before
	}
	s.OtherAgent = s.Agent.From == "--agent" && s.Agent.Value != before.Value
	if err := r.nameSession(&s); err != nil {
		return Settings{}, err
	}
	s.Start = choose("", "", "BROKERD_START", "start").Value == "true"
	r.Found = &s
	return s, nil
}

// HookSession returns the session of the coding agent that this run belongs to, or "". Claude Code and Codex set
// a variable for the commands that their models run, with the session_id that their hooks receive.
func (r *Resolver) HookSession() string {
	return cmp.Or(r.Hooked.ID, r.Env.Get("CLAUDE_CODE_SESSION_ID"), r.Env.Get("CODEX_SESSION_ID"))
}

// identity returns the agent of the file that this run acts as: the agent of the coding agent's
// session, or the only one.
func (r *Resolver) identity(file Config, path string) Value {
	names := file.Names()
	for _, name := range names {
		if id := file.Agents[name]["hook_session"]; id != "" && id == r.HookSession() {
			return Value{name, path + ", hook session " + id}
		}
	}
	if len(names) == 1 {
		return Value{names[0], path}
	}
	return Value{}
}

// FolderConfig returns the configFile of the working folder, and its path; without one, "".
func (r *Resolver) FolderConfig() (string, Config, error) {
	if r.Global.noConfig {
		return "", Config{}, nil
	}
	path, err := r.FindConfig()
	if path == "" || err != nil {
		return "", Config{}, err
	}
	file, err := ReadConfig(path)
	if err != nil {
		return "", Config{}, problem.Usagef("%s: %v", path, err)
	}
	return path, file, nil
}

// FindConfig looks for a configFile from the working folder upwards and returns its path, or "". A file that
// belongs to neither the user, root, nor the owner of the working folder is passed over: in a folder that all
// may write to, anybody could say where calls go.
func (r *Resolver) FindConfig() (string, error) {
	dir, err := r.Env.WorkingDir()
	if err != nil {
		return "", fmt.Errorf("look for %s: %w", ConfigFile, err)
	}
	owners := []uint32{0, uint32(os.Getuid())}
	if info, err := os.Stat(dir); err == nil {
		owners = append(owners, Owner(info))
	}
	for {
		path := filepath.Join(dir, ConfigFile)
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() && slices.Contains(owners, Owner(info)) {
			return path, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return "", fmt.Errorf("look for %s: %w", ConfigFile, err)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", nil
		}
		dir = parent
	}
}

// Owner returns the user id that a file belongs to.
func Owner(info fs.FileInfo) uint32 {
	return info.Sys().(*syscall.Stat_t).Uid
}

// ReadConfig reads a configFile. Its error names an unknown key. Another person may have written the
// file, and a language model may read the error, which therefore quotes single words of the file only.
func ReadConfig(path string) (Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	return ParseConfig(path, text)
}

// ParseConfig is readConfig for the text of the file at path.
func ParseConfig(path string, text []byte) (Config, error) {
	nodes := map[string]yaml.Node{}
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&nodes); err != nil && !errors.Is(err, io.EOF) {
		return Config{}, fmt.Errorf("%s: want YAML with the keys %s, each once", // err can quote the file
			cmp.Or(yamlLine.FindString(err.Error()), "line 1"), strings.Join(configKeys, ", "))
	}
	read := Config{Values: map[string]string{}, given: map[string]string{}}
	for key, node := range nodes {
		if !slices.Contains(configKeys, key) {
			return Config{}, UnknownKey(node.Line, key, configKeys)
		}
		if key == "agents" {
			if err := node.Decode(&read.Agents); err != nil {
				return Config{}, fmt.Errorf("line %d: agents must be names with settings, such as builder-1: {role: builder}",
					node.Line)
			}
			continue
		}
		var value string
		if err := node.Decode(&value); err != nil {
			return Config{}, fmt.Errorf("line %d: %s must be one value", node.Line, key)
		}
		read.Values[key], read.given[key] = value, value
	}
	if start := read.Values["start"]; start != "" && start != "true" && start != "false" {
		return Config{}, fmt.Errorf("line %d: start must be true or false", nodes["start"].Line)
	}
	if session := read.Values["session"]; session != "" && !ValidName.MatchString(session) {
		return Config{}, badName(nodes["session"].Line, "session")
	}
	for _, name := range read.Names() {
		line := lineOf(nodes["agents"], name)
		if !ValidName.MatchString(name) {
			return Config{}, badName(line, "a key of agents")
		}
		for key, value := range read.Agents[name] {
			if !slices.Contains(agentKeys, key) {
				return Config{}, UnknownKey(line, key, agentKeys)
			}
			if key == "role" && value != "" && !ValidName.MatchString(value) {
				return Config{}, badName(line, "role")
			}
			if modes := pb.Attention(0).Descriptor(); key == "attention" && !slices.Contains(jsonform.EnumNames(modes), value) {
				return Config{}, fmt.Errorf("line %d: attention must be one of %s", line, strings.Join(jsonform.EnumNames(modes), ", "))
			}
			if key == "labels" {
				if _, err := labelsIn(value); err != nil {
					return Config{}, fmt.Errorf("line %d: %w", line, err)
				}
			}
		}
	}
	for _, key := range FileKeys {
		if file := read.Values[key]; file != "" && !filepath.IsAbs(file) {
			read.Values[key] = filepath.Join(filepath.Dir(path), file)
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

// ValidName matches a name of an agent, a role or a session, as the broker checks it.
var ValidName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// NameForm says in words what validName matches.
const NameForm = "use 1 to 128 letters, digits, '.', '_', ':' or '-', beginning with a letter or digit"

func badName(line int, what string) error {
	return fmt.Errorf("line %d: %s is not a valid name: %s", line, what, NameForm)
}

// UnknownKey returns the error of a key that the file may not have.
func UnknownKey(line int, key string, known []string) error {
	return fmt.Errorf("line %d: unknown key%s; known are %s", line, QuoteWord(key), strings.Join(known, ", "))
}

// QuoteWord quotes a text of a configFile, after a space, if it is a single word; otherwise it returns "".
func QuoteWord(s string) string {
	return prompt.Either(prompt.Word(s), fmt.Sprintf(" %q", s), "")
}

// SourceOfAgent returns the flag, variable or file that names the agent; "" if none does.
func (r *Resolver) SourceOfAgent() string {
	if r.Found == nil || r.Found.Agent.Value == "" {
		return ""
	}
	return r.Found.Agent.From
}
