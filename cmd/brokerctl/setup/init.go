package setup

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/registration"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// Init is brokerctl init.
var Init = command.Procedure[*pb.RegisterAgentRequest]{
	Page: command.Page{
		Use:   "init",
		Short: "Write a .brokerd.yaml, so that commands in this folder need no flags",
		Long: `Add an agent, a session or an address to the .brokerd.yaml of this folder, for all
commands in this folder and below. init creates the file if necessary, adds it to
.gitignore in a git work tree, and registers the agent unless it is registered.

Several agents can share a folder: call init once for each. A command then acts as the
first of these:
  1. --agent NAME
  2. BROKERD_AGENT
  3. the agent that init was called for in this session of Claude Code
  4. the only agent in the file

Exit code 5: the file has another session, address or output, or a credential or
certificate without an address, and the call has --addr. Exit code 69: the file was
written, but no broker answers.`,
		Example: `  brokerctl init --agent builder-1 --role builder
  brokerctl init --agent critic-1 --role critic
  brokerctl init --session website`,
	},
	Options: []command.Option{{Field: "role", Kind: words.Role, Usage: "the agent's role"}},
	Run:     initialize,
}

// Initialized is the JSON output of init.
type Initialized struct {
	File       string `json:"file"`
	Ignored    string `json:"gitignore"` // the .gitignore that this command changed
	Addr       string `json:"addr"`      // where the broker answers
	Session    string `json:"session"`
	Agent      string `json:"agent"`
	Registered bool   `json:"registered"` // by this command
	Next       string `json:"next"`
}

func initialize(g *command.Given, q *pb.RegisterAgentRequest) error {
	c, cmd := g.Caller, g.Cmd
	s, err := c.Settings()
	if err != nil {
		return err
	}
	if s.Refused != nil {
		return s.Refused
	}
	store, err := c.Env.TrustStore()
	if err != nil {
		return err
	}
	// Only the caller names the agent to add. The file does not.
	agent := cmp.Or(c.Global.Agent, c.Env.Get("BROKERD_AGENT"))
	if q.GetRole() != "" && agent == "" {
		return problem.Usagef("--role needs an agent: add --agent NAME")
	}
	dir, err := c.Env.WorkingDir()
	if err != nil {
		return err
	}
	done := Initialized{
		File: filepath.Join(dir, setting.ConfigFile), Session: cmp.Or(s.Session.Value, "default"), Agent: agent,
	}
	above, err := ConnectionAbove(c, done.File)
	if err != nil {
		return err
	}
	written, err := addition{
		store: store, above: above, head: "Read by brokerctl in this folder and below; flags and environment win.",
		addr: c.Global.Addr, session: done.Session, output: c.Global.Output,
		agent: agent, role: q.GetRole(), hookSession: c.HookSession(),
	}.write(done.File)
	if err != nil {
		return err
	}
	if done.Ignored, err = ignoreInGit(c, dir); err != nil {
		return err
	}
	c.Found = &setting.Settings{
		File: s.File, Addr: s.Addr, Session: s.Session, Output: s.Output, CredentialFile: s.CredentialFile, TLS: s.TLS,
		Agent: setting.Value{Value: agent, From: "--agent"}, OtherAgent: agent != s.Agent.Value,
	}
	broker, err := c.Connect(cmd.Context())
	if err == nil {
		done.Addr = broker.Address()
		done.Registered, err = register(c, cmd.Context(), q, written.Agents[agent])
	}
	if err != nil {
		code, text := c.Explain(err)
		return &problem.Failure{Code: code, Text: fmt.Sprintf("wrote %s; but: %s", done.File, text), Err: err}
	}
	lines := []string{"wrote " + done.File + "; the broker at " + done.Addr + " answers"}
	if done.Ignored != "" {
		lines = append(lines, "added "+setting.ConfigFile+" to "+done.Ignored)
	}
	if agent != "" {
		registered := prompt.Either(done.Registered, "registered now", "registered already")
		lines = append(lines, fmt.Sprintf("%s is %s", agent, registered))
	}
	switch {
	case agent == "":
		done.Next = "brokerctl init --agent NAME --role ROLE"
	case len(written.Agents) > 1 && written.Agents[agent]["hook_session"] == "" && c.Env.Get("BROKERD_AGENT") != agent:
		done.Next = fmt.Sprintf("export BROKERD_AGENT=%s, since this folder has several agents: %s",
			prompt.ShellWord(agent), strings.Join(written.Names(), ", "))
	default:
		done.Next = "brokerctl guide explains how to work; brokerctl next --wait 90s takes the first message"
	}
	return c.ShowValue(cmd, done, strings.Join(append(lines, "Next: "+done.Next), "\n"))
}

// An addition is what init and setup add to a configFile.
type addition struct {
	store                    setting.TrustStore // receives what was written
	above                    map[string]string  // connectionKeys of a file in a folder above, which the new one replaces
	head                     string             // the comment at the top of a new file
	addr, session, output    string
	agent, role, hookSession string
	start                    bool
}

// write adds to the file what it does not have yet, and returns its content. A lock on the file
// orders agents that call init at the same time. The file keeps its comments.
func (a addition) write(path string) (setting.Config, error) {
	if err := a.check(); err != nil {
		return setting.Config{}, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return setting.Config{}, err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return setting.Config{}, fmt.Errorf("lock %s: %w", path, err)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return setting.Config{}, err
	}
	if had, err := setting.ParseConfig(path, text); err == nil {
		if err := a.store.MayExtend(path, had); err != nil {
			return setting.Config{}, err
		}
	}
	if text, err = a.to(path, text); err != nil {
		return setting.Config{}, err
	}
	if err := f.Truncate(0); err != nil {
		return setting.Config{}, err
	}
	if _, err := f.WriteAt(text, 0); err != nil {
		return setting.Config{}, err
	}
	written, err := setting.ParseConfig(path, text)
	if err == nil && written.Connects() {
		err = a.store.Add(path, written)
	}
	return written, err
}

// check returns an error if a name is none: the file could not be read afterwards.
func (a addition) check() error {
	for flag, name := range map[string]string{"--agent": a.agent, "--role": a.role, "--session": a.session} {
		if name != "" && !setting.ValidName.MatchString(name) {
			return problem.Usagef("%s: %q is not a name: %s; nothing was changed", flag, name, setting.NameForm)
		}
	}
	return nil
}

// ConnectionAbove returns the connectionKeys of the file in a folder above that says where the calls of
// this folder go: the values that the trust check has read, since the new file will be trusted too.
func ConnectionAbove(c *command.Caller, path string) (map[string]string, error) {
	s, err := c.Settings()
	if err != nil || s.File == "" || s.File == path || s.Addr.From != s.File {
		return nil, err
	}
	return s.Content.Values, nil
}

// to returns the text of the file at path with the addition.
func (a addition) to(path string, text []byte) ([]byte, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	had, err := setting.ParseConfig(path, text)
	if err != nil {
		return nil, problem.Usagef("%s: %v", path, err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) == 0 {
		doc.Content = []*yaml.Node{{Kind: yaml.MappingNode, HeadComment: a.head}}
		doc.Kind = yaml.DocumentNode
	}
	top := doc.Content[0]
	address := cmp.Or(a.addr, a.above["addr"])
	if proof := had.Proof(); address != "" && had.Values["addr"] == "" && proof != "" {
		return nil, problem.Failf(problem.ExitConflict, "%s has %s and no addr, and --addr would send it to %s: "+
			"leave out --addr, or change the file", path, proof, address)
	}
	pairs := [][2]string{{"addr", address}, {"session", a.session}, {"output", a.output},
		{"start", prompt.Either(a.start, "true", "")}}
	for _, key := range setting.FileKeys {
		pairs = append(pairs, [2]string{key, a.above[key]})
	}
	for _, pair := range pairs {
		key, value := pair[0], pair[1]
		switch have := had.Values[key]; {
		case value == "" || have == value:
		case have != "":
			return nil, problem.Failf(problem.ExitConflict,
				"%s has %s%s, and this call has %q: change the file, or leave out --%s or its variable",
				path, key, setting.QuoteWord(have), value, key)
		default:
			put(top, key, &yaml.Node{Kind: yaml.ScalarNode, Tag: prompt.Either(key == "start", "!!bool", "!!str"), Value: value})
		}
	}
	if a.agent != "" {
		agents := put(top, "agents", &yaml.Node{Kind: yaml.MappingNode})
		agent := put(agents, a.agent, &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle})
		for name, other := range had.Agents {
			if id := a.hookSession; id != "" && id == other["hook_session"] {
				drop(put(agents, name, nil), "hook_session") // a session is one agent
			}
		}
		for _, pair := range [][2]string{{"role", a.role}, {"hook_session", a.hookSession}} {
			if pair[1] != "" {
				*put(agent, pair[0], &yaml.Node{}) = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: pair[1]}
			}
		}
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err = e.Encode(&doc)
	return b.Bytes(), err
}

// put returns the value of a key of a mapping, and adds the given one if the key has none.
func put(mapping *yaml.Node, key string, value *yaml.Node) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			if have := mapping.Content[i+1]; have.Tag != "!!null" {
				return have
			}
			mapping.Content[i+1] = value
			return value
		}
	}
	mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
	return value
}

// drop removes a key of a mapping.
func drop(mapping *yaml.Node, key string) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			mapping.Content = slices.Delete(mapping.Content, i, i+2)
			return
		}
	}
}

// ignoreInGit adds the configFile to the .gitignore of the git work tree that dir is in, and returns
// the path of that .gitignore. It returns "" if no change is necessary.
func ignoreInGit(c *command.Caller, dir string) (string, error) {
	top, done := ignoredByGit(c, dir)
	if done {
		return "", nil
	}
	path := filepath.Join(top, ".gitignore")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	line := setting.ConfigFile + "\n"
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		line = "\n" + line
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(line)
	return path, errors.Join(err, f.Close())
}

// ignoredByGit returns the git work tree that dir is in, or "". done reports that git ignores or tracks
// the configFile of dir, that there is no work tree, or no git.
func ignoredByGit(c *command.Caller, dir string) (top string, done bool) {
	path, err := c.Env.LookPath("git")
	if err != nil {
		return "", true
	}
	git := func(args ...string) (string, error) {
		cmd := exec.Command(path, append([]string{"-C", dir}, args...)...)
		cmd.Env, cmd.Dir = c.Env.Variables, c.Env.ChildDir()
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	top, err = git("rev-parse", "--show-toplevel")
	if err != nil || top == "" {
		return "", true
	}
	_, err = git("check-ignore", "--quiet", setting.ConfigFile)
	tracked, _ := git("ls-files", setting.ConfigFile)
	return top, err == nil || tracked != ""
}

// register registers the agent if necessary, as the configFile describes it, and reports whether it did. Without an agent it
// checks that the broker answers.
func register(
	c *command.Caller, ctx context.Context, q *pb.RegisterAgentRequest, agent map[string]string,
) (bool, error) {
	broker := c.Client
	if broker.Identity().Agent == "" {
		_, err := broker.Sessions().GetSession(ctx, &pb.GetSessionRequest{})
		return false, err
	}
	_, err := broker.As("").Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: broker.Identity().Agent})
	if status.Code(err) != codes.NotFound {
		return false, err
	}
	q.Lease = durationpb.New(registration.ShellLease)
	setting.AsDescribed(q, agent)
	_, err = broker.Agents().RegisterAgent(ctx, q)
	return err == nil, err
}
