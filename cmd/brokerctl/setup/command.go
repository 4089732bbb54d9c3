package setup

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
)

// setupOptions are the options of setup.
type setupOptions struct {
	dryRun     bool
	remove     bool
	user       bool
	check      bool
	unattended bool
	start      bool
	role       string

	versions map[string]string // of the programs that were asked, by the name of their coding agent
}

// NewCommand returns the command brokerctl setup.
func NewCommand(c *command.Caller) *cobra.Command {
	cmd := setup.Command(c)
	cmd.Args = cobra.MaximumNArgs(1)
	return cmd
}

var setup = command.Procedure[command.None]{
	Page: command.Page{
		Use:   "setup [NAME]",
		Short: "Connect a coding agent: MCP server, hooks, instructions, slash commands",
		Long: `Add the broker to the configuration of a coding agent in this folder. Without NAME,
list the coding agents. setup keeps what a file has, also comments and order; a second
run changes nothing, and one with other options changes what setup wrote; --remove
restores the files. With --agent, the MCP server and the hooks of this coding agent
have that name, so that several coding agents can share the folder. Without a
configured agent, setup names it after the folder, in .brokerd.yaml. In the end, setup
checks what --check does. See docs/setup.md.

Exit code 1: a check of --check failed. Exit code 5: a file has another value in the
place of an addition. setup keeps it, and makes the other changes. Exit code 2: a file
cannot be read or written; setup changes nothing.`,
		Example: `  brokerctl setup claude-code --agent builder-1 --role builder
  brokerctl setup codex --agent critic-1 --role critic
  brokerctl setup codex --dry-run
  brokerctl setup codex --check`,
	},
	Args: []command.Arg{{After: func([]string) command.Kind {
		return command.Kind{Fixed: each.Of(Vendors(Options{}), func(v Vendor) string { return v.Name })}
	}}},
	Options: []command.Option{
		{Name: "dry-run", Type: "bool", Usage: "show the changes, write nothing"},
		{Name: "remove", Type: "bool", Usage: "remove what setup added"},
		{Name: "user", Type: "bool", Usage: "the user's files, for all projects, in place of those of this folder"},
		{Name: "check", Type: "bool", Usage: "change nothing; check the files, the broker, the agent's name and the hooks"},
		{Name: "unattended", Type: "bool", Usage: "the hook at the end of a turn waits 10 minutes for messages: " +
			"meanwhile a prompt of the user waits too, and a run without a screen, such as claude -p, does not end"},
		{Name: "start", Type: "bool",
			Usage: "start a broker if none runs, now and whenever the MCP server or a hook finds none"},
		{Name: "role", Type: "string", Kind: words.Role,
			Usage: "the role of --agent, which setup adds to .brokerd.yaml as init does"},
	},
	Apart: [][]string{
		{"remove", "role"}, {"remove", "unattended"}, {"remove", "start"}, {"user", "start"},
		{"check", "remove"}, {"check", "dry-run"}, {"check", "role"},
	},
	Run: func(g *command.Given, _ command.None) error {
		o := &setupOptions{
			dryRun: g.On("dry-run"), remove: g.On("remove"), user: g.On("user"), check: g.On("check"),
			unattended: g.On("unattended"), start: g.On("start"), role: g.Text("role"),
		}
		if len(g.Args) == 0 {
			return o.list(g.Caller, g.Cmd)
		}
		return o.run(g.Caller, g.Cmd, g.Args[0])
	},
}

// VendorState is the JSON output of setup without a name.
type VendorState struct {
	Name   string   `json:"name"`
	Title  string   `json:"title"`
	Found  bool     `json:"found"`  // its program is in PATH
	SetUp  bool     `json:"set_up"` // this folder has every addition
	Tested string   `json:"tested"` // the version
	Files  []string `json:"files"`
}

func (o *setupOptions) list(c *command.Caller, cmd *cobra.Command) error {
	format, err := c.Format()
	if err != nil {
		return err
	}
	t := c.NewTable(cmd.OutOrStdout(), table.Column{Name: "NAME"}, table.Column{Name: "PROGRAM"},
		table.Column{Name: "FOUND"}, table.Column{Name: "SET UP"}, table.Column{Name: "FILES"})
	for _, v := range Vendors(Options{}) {
		if v, err = o.vendor(c, v.Name); err != nil {
			return err
		}
		state := VendorState{Name: v.Name, Title: v.Title, Tested: v.Tested, SetUp: true}
		for _, program := range v.Programs {
			_, err := c.Env.LookPath(program)
			state.Found = state.Found || err == nil
		}
		plan, err := o.plan(c, v, false)
		if err != nil {
			return err
		}
		for _, change := range plan {
			state.Files = append(state.Files, change.Path)
			state.SetUp = state.SetUp && change.Action == "unchanged"
		}
		if format == output.FormatJSON {
			if err := c.ShowValue(cmd, state, ""); err != nil {
				return err
			}
			continue
		}
		t.Row(v.Name, strings.Join(v.Programs, ", "), yesNo(state.Found), yesNo(state.SetUp), strings.Join(state.Files, ", "))
	}
	if format == output.FormatJSON {
		return nil
	}
	return t.Flush()
}

func yesNo(b bool) string { return prompt.Either(b, "yes", "no") }

// setupChange is what setup does with a file. It is part of the JSON output.
type setupChange struct {
	Path      string   `json:"path"`
	What      string   `json:"what"`
	Action    string   `json:"action"`    // created, changed, removed, unchanged, conflict
	Conflicts []string `json:"conflicts"` // values that setup kept
	Diff      string   `json:"diff"`

	base          string    // the folder that the file is below
	at            string    // its absolute path
	file          string    // the path to read and write, of a symbolic link its target
	add           *addition // how to change a configFile
	before, after Content
}

// Outcome is the JSON output of setup.
type Outcome struct {
	Vendor  string         `json:"vendor"`
	Folder  string         `json:"folder"`
	DryRun  bool           `json:"dry_run"`
	Changes []*setupChange `json:"changes"`
	Agent   string         `json:"agent"` // of this folder
	Next    []string       `json:"next"`
	Wake    []string       `json:"wake"`   // the ways to wake the agent while it is idle, the first that applies first
	Checks  []setupCheck   `json:"checks"` // what works
}

func (o *setupOptions) run(c *command.Caller, cmd *cobra.Command, name string) error {
	v, err := o.vendor(c, name)
	if err != nil {
		return err
	}
	if o.check {
		return o.checkOnly(c, cmd, v)
	}
	if o.role != "" && c.Global.Agent == "" {
		return problem.Usagef("--role needs an agent: add --agent NAME")
	}
	plan, err := o.plan(c, v, o.remove)
	if err != nil {
		return err
	}
	done := Outcome{Vendor: v.Name, DryRun: o.dryRun}
	if done.Folder, err = o.folder(c); err != nil {
		return err
	}
	var more []*setupChange
	if o.remove {
		more, err = o.planRemoval(c, v)
	} else {
		done.Agent, more, err = o.planAgent(cmd.Context(), c, v)
	}
	if err != nil {
		return err
	}
	for _, change := range more {
		if change.base != done.Folder {
			change.Path = change.at
		}
		if err := change.finish(); err != nil {
			return err
		}
	}
	plan = append(plan, more...)
	done.Changes = plan
	conflicts := 0
	for _, change := range plan {
		conflicts += len(change.Conflicts)
		if o.dryRun {
			continue
		}
		if err := change.write(); err != nil {
			return problem.Failf(problem.ExitError, "%s: %v", change.Path, err)
		}
	}
	if !o.remove {
		done.Next, done.Wake = o.next(c, v, done), o.wake(v, done.Agent)
		if !o.dryRun {
			done.Checks = o.checks(cmd.Context(), c, v)
		}
	} else {
		done.Next = []string{"restart " + v.Title + "; the agent's registration stays"}
	}
	if err := o.show(c, cmd, v, done); err != nil {
		return err
	}
	if conflicts > 0 {
		return problem.Failf(problem.ExitConflict, "%s: setup kept the other values; "+
			"remove them by hand and run setup again to get those of setup", prompt.Count(conflicts, "conflict"))
	}
	return nil
}

// folder returns the folder that the paths of the files are below.
func (o *setupOptions) folder(c *command.Caller) (string, error) {
	if o.user {
		return c.Env.HomeDir()
	}
	return c.Env.WorkingDir()
}

// vendor returns the coding agent with the additions of these options. The MCP server and the hooks have the name of
// --agent, or the one that an earlier setup gave them. The user's files are for all projects, and name none.
func (o *setupOptions) vendor(c *command.Caller, name string) (Vendor, error) {
	v, err := Find(name, Options{})
	if err != nil {
		return v, problem.Usagef("%v", err)
	}
	more := Options{Unattended: o.unattended, Wake: o.wakes(c, v)}
	if !o.user {
		if more.Agent, err = o.agentOf(c, v); err != nil {
			return v, err
		}
		more.Agent = cmp.Or(c.Global.Agent, more.Agent)
	}
	if v, err = Find(name, more); err != nil {
		return v, problem.Usagef("%v", err)
	}
	return v, nil
}

// agentOf returns the name that the file with the MCP server of a coding agent has, or "".
func (o *setupOptions) agentOf(c *command.Caller, v Vendor) (string, error) {
	base, err := o.folder(c)
	if err != nil {
		return "", err
	}
	server := v.Files[0]
	file, err := newSetupChange(base, existing(base, server.Path, server.Other), server.What)
	if err != nil {
		return "", err
	}
	return server.Agent(file.before), nil
}

// plan returns what setup would do with each file of the vendor. It reads every file before setup
// writes one, so a broken file leaves all as they are.
func (o *setupOptions) plan(c *command.Caller, v Vendor, remove bool) ([]*setupChange, error) {
	base, err := o.folder(c)
	if err != nil {
		return nil, err
	}
	var plan []*setupChange
	for _, f := range v.Files {
		path := prompt.Either(o.user, f.User, f.Path)
		if path == "" {
			continue
		}
		change, err := newSetupChange(base, existing(base, path, f.Other), f.What)
		if err != nil {
			return nil, err
		}
		switch shared := ""; {
		case !remove:
			change.after, change.Conflicts, err = f.Add(change.before)
		default:
			if shared, err = o.sharedWith(c, v, f, path); shared != "" {
				change.What += ", still used by " + shared
			} else if err == nil {
				change.after, change.Conflicts, err = f.Remove(change.before)
			}
		}
		if err != nil {
			return nil, problem.Usagef("%s: %v; nothing was changed", change.Path, err)
		}
		if err := change.finish(); err != nil {
			return nil, err
		}
		plan = append(plan, change)
	}
	return plan, nil
}

// existing returns the path, with another name if only a file with that name exists.
func existing(base, path string, others []string) string {
	for _, name := range append([]string{filepath.Base(path)}, others...) {
		at := filepath.Join(filepath.Dir(path), name)
		if _, err := os.Stat(filepath.Join(base, at)); err == nil {
			return at
		}
	}
	return path
}

// sharedWith returns the name of another vendor that reads the same addition in the same file and is
// still set up, or "".
func (o *setupOptions) sharedWith(c *command.Caller, v Vendor, f File, path string) (string, error) {
	if !f.Shared() {
		return "", nil
	}
	for _, other := range Vendors(Options{}) {
		reads := false
		for _, g := range other.Files {
			reads = reads || g.Shared() && path == prompt.Either(o.user, g.User, g.Path)
		}
		if !reads || other.Name == v.Name {
			continue
		}
		if used, err := o.isSetUp(c, other); err != nil || used {
			return other.Title, err
		}
	}
	return "", nil
}

// isSetUp reports whether a vendor has its MCP server.
func (o *setupOptions) isSetUp(c *command.Caller, v Vendor) (bool, error) {
	agent, err := o.agentOf(c, v)
	if err != nil {
		return false, err
	}
	if v, err = Find(v.Name, Options{Agent: agent}); err != nil {
		return false, err
	}
	plan, err := o.plan(c, Vendor{Name: v.Name, Files: v.Files[:1]}, false)
	return err == nil && plan[0].Action == "unchanged", err
}

// next returns what the user must do after setup.
func (o *setupOptions) next(c *command.Caller, v Vendor, done Outcome) []string {
	next := []string{v.Next}
	s, err := c.Settings()
	switch {
	case err != nil || o.user && len(s.Unchosen) > 0:
	case done.Agent != "":
		next = append(next, o.nextOfTeam(c, v, done.Agent)...)
	case len(s.Unchosen) > 0:
		next = append(next, fmt.Sprintf("name the agent, since this folder has several (%s): brokerctl setup %s --agent NAME",
			prompt.Names(s.Unchosen, len(s.Unchosen)), v.Name))
	default:
		next = append(next, "name the agent of each project, or its hooks only warn: brokerctl init --agent NAME --role ROLE")
	}
	return next
}

// nextOfTeam returns what the user must do in a folder with further agents.
func (o *setupOptions) nextOfTeam(c *command.Caller, v Vendor, agent string) (next []string) {
	_, file, err := c.FolderConfig()
	if err != nil || len(file.Agents) < 2 || o.user {
		return nil
	}
	all := file.Names()
	next = append(next, fmt.Sprintf(
		"in a shell, choose the agent, since this folder has several (%s): export BROKERD_AGENT=NAME",
		prompt.Names(all, len(all))))
	for _, other := range Vendors(Options{}) {
		used, err := o.isSetUp(c, other)
		if name, unnamed := o.agentOf(c, other); err == nil && unnamed == nil && used && name == "" && other.Name != v.Name {
			next = append(next, fmt.Sprintf(
				"name %s too, or it takes any free name and its hooks only warn: brokerctl setup %s --agent NAME",
				other.Title, other.Name))
		}
	}
	return next
}

// wake returns the ways to wake an idle agent of this vendor, in the order in which they are tried.
func (o *setupOptions) wake(v Vendor, agent string) []string {
	run := "brokerctl agent run --agent " + prompt.ShellWord(cmp.Or(agent, "NAME"))
	ways := []string{
		run + " --pty -- " + v.Programs[0], run + " --wake " + prompt.ShellWord(v.Once+` "run brokerctl next"`),
	}
	if o.unattended && !v.Patient {
		ways = slices.Insert(ways, 0, "the hook "+v.Hook+" (applies now): it waits up to 10 minutes for the next message")
	}
	return ways
}

func (o *setupOptions) show(c *command.Caller, cmd *cobra.Command, v Vendor, done Outcome) error {
	if format, err := c.Format(); err != nil || format == output.FormatJSON {
		return cmp.Or(err, c.ShowValue(cmd, done, ""))
	}
	out := cmd.OutOrStdout()
	preview := prompt.Either(o.dryRun, ": what it would do; nothing is written", "")
	fmt.Fprintf(out, "%s in %s%s\n", v.Title, prompt.Clean(done.Folder), preview)
	for _, change := range done.Changes {
		will := prompt.Either(o.dryRun && change.Action != "unchanged" && change.Action != "conflict", "would be ", "")
		fmt.Fprintf(out, "  %-9s  %s (%s)\n", will+change.Action, change.Path, change.What)
		for _, conflict := range change.Conflicts {
			fmt.Fprintf(out, "             kept: %s\n", prompt.Clean(conflict))
		}
	}
	for _, change := range done.Changes {
		for line := range strings.Lines(change.Diff) {
			fmt.Fprintln(out, shownLine(c, strings.TrimSuffix(line, "\n")))
		}
	}
	for _, next := range done.Next {
		fmt.Fprintln(out, "Next: "+next)
	}
	showChecks(c, out, done.Checks)
	how := prompt.Either(v.Woken, "Mail wakes the agent while its session is idle. Without a session:\n",
		"To wake the agent while it is idle:\n")
	for i, way := range done.Wake {
		fmt.Fprintf(out, "%s  %d. %s\n", prompt.Either(i == 0, how, ""), i+1, way)
	}
	return nil
}

// shownLine colours a line of a diff, on a screen with colours.
func shownLine(c *command.Caller, line string) string {
	color := ""
	switch {
	case strings.HasPrefix(line, "+"):
		color = "32"
	case strings.HasPrefix(line, "-"):
		color = "31"
	case strings.HasPrefix(line, "@@"):
		color = "36"
	}
	if line = prompt.Clean(line); color == "" || !c.Screen().Color {
		return line
	}
	return "\x1b[" + color + "m" + line + "\x1b[0m"
}
