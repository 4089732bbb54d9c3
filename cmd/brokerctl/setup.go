package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/setup"
	"brokerd/cmd/brokerctl/table"
)

// setupOptions are the options of setup.
type setupOptions struct {
	dryRun bool
	remove bool
	user   bool
	role   string
}

// AddFlags adds the options.
func (o *setupOptions) AddFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.dryRun, "dry-run", false, "show the changes, write nothing")
	f.BoolVar(&o.remove, "remove", false, "remove what setup added")
	f.BoolVar(&o.user, "user", false, "the user's files, for all projects, in place of those of this folder")
	f.StringVar(&o.role, "role", "", "the role of --agent, which setup adds to .brokerd.yaml as init does")
}

func newSetupCommand(c *cli) *cobra.Command {
	o := &setupOptions{}
	cmd := &cobra.Command{
		Use:   "setup [NAME]",
		Short: "Connect a coding agent: MCP server, hooks, instructions, slash commands",
		Long: `Add the broker to the configuration of a coding agent in this folder. Without NAME,
list the coding agents. setup keeps what a file has, also comments and order; a second
run changes nothing; --remove restores the files. Without a configured agent, setup
names it after the folder, in .brokerd.yaml. See docs/setup.md.

Exit code 5: a file has another value in the place of an addition. setup keeps it, and
makes the other changes. Exit code 2: a file cannot be read or written; setup changes
nothing.`,
		Example: `  brokerctl setup claude-code --agent builder-1 --role builder
  brokerctl setup codex --dry-run`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, v := range setup.Vendors() {
				if len(args) == 0 {
					names = append(names, v.Name)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return o.list(c, cmd)
			}
			return o.run(c, cmd, args[0])
		},
	}
	o.AddFlags(cmd.Flags())
	cmd.MarkFlagsMutuallyExclusive("remove", "role")
	return cmd
}

// vendorState is the JSON output of setup without a name.
type vendorState struct {
	Name   string   `json:"name"`
	Title  string   `json:"title"`
	Found  bool     `json:"found"`  // its program is in PATH
	SetUp  bool     `json:"set_up"` // this folder has every addition
	Tested string   `json:"tested"` // the version
	Files  []string `json:"files"`
}

func (o *setupOptions) list(c *cli, cmd *cobra.Command) error {
	format, err := c.format()
	if err != nil {
		return err
	}
	t := c.newTable(cmd.OutOrStdout(), table.Column{Name: "NAME"}, table.Column{Name: "PROGRAM"},
		table.Column{Name: "FOUND"}, table.Column{Name: "SET UP"}, table.Column{Name: "FILES"})
	for _, v := range setup.Vendors() {
		state := vendorState{Name: v.Name, Title: v.Title, Tested: v.Tested, SetUp: true}
		for _, program := range v.Programs {
			_, err := c.env.lookPath(program)
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
		if format == formatJSON {
			if err := c.showValue(cmd, state, ""); err != nil {
				return err
			}
			continue
		}
		t.row(v.Name, strings.Join(v.Programs, ", "), yesNo(state.Found), yesNo(state.SetUp), strings.Join(state.Files, ", "))
	}
	if format == formatJSON {
		return nil
	}
	return t.flush()
}

func yesNo(b bool) string { return cond(b, "yes", "no") }

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
	before, after setup.Content
}

// setupDone is the JSON output of setup.
type setupDone struct {
	Vendor  string         `json:"vendor"`
	Folder  string         `json:"folder"`
	DryRun  bool           `json:"dry_run"`
	Changes []*setupChange `json:"changes"`
	Agent   string         `json:"agent"` // of this folder
	Next    []string       `json:"next"`
	Wake    []string       `json:"wake"` // the ways to wake the agent while it is idle, the first that applies first
}

func (o *setupOptions) run(c *cli, cmd *cobra.Command, name string) error {
	v, err := setup.Find(name)
	if err != nil {
		return usagef("%v", err)
	}
	if o.role != "" && c.global.agent == "" {
		return usagef("--role needs an agent: add --agent NAME")
	}
	plan, err := o.plan(c, v, o.remove)
	if err != nil {
		return err
	}
	done := setupDone{Vendor: v.Name, DryRun: o.dryRun}
	if done.Folder, err = o.folder(c); err != nil {
		return err
	}
	var more []*setupChange
	if o.remove {
		more, err = o.planRemoval(c, v)
	} else {
		done.Agent, more, err = o.planAgent(cmd.Context(), c)
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
			return failf(exitError, "%s: %v", change.Path, err)
		}
	}
	if !o.remove {
		done.Next, done.Wake = o.next(c, v, done), setupWake(v, done.Agent)
	} else {
		done.Next = []string{"restart " + v.Title + "; the agent's registration stays"}
	}
	if err := o.show(c, cmd, v, done); err != nil {
		return err
	}
	if conflicts > 0 {
		return failf(exitConflict, "%s: setup kept the other values; "+
			"remove them by hand and run setup again to get those of setup", count(conflicts, "conflict"))
	}
	return nil
}

// folder returns the folder that the paths of the files are below.
func (o *setupOptions) folder(c *cli) (string, error) {
	if o.user {
		return c.env.homeDir()
	}
	return c.env.dir()
}

// plan returns what setup would do with each file of the vendor. It reads every file before setup
// writes one, so a broken file leaves all as they are.
func (o *setupOptions) plan(c *cli, v setup.Vendor, remove bool) ([]*setupChange, error) {
	base, err := o.folder(c)
	if err != nil {
		return nil, err
	}
	var plan []*setupChange
	for _, f := range v.Files {
		path := f.Path
		if o.user {
			path = f.User
		}
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
			return nil, usagef("%s: %v; nothing was changed", change.Path, err)
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
func (o *setupOptions) sharedWith(c *cli, v setup.Vendor, f setup.File, path string) (string, error) {
	if !f.Shared() {
		return "", nil
	}
	for _, other := range setup.Vendors() {
		reads := false
		for _, g := range other.Files {
			reads = reads || g.Shared() && path == cond(o.user, g.User, g.Path)
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
func (o *setupOptions) isSetUp(c *cli, v setup.Vendor) (bool, error) {
	plan, err := o.plan(c, setup.Vendor{Name: v.Name, Files: v.Files[:1]}, false)
	return err == nil && plan[0].Action == "unchanged", err
}

// next returns what the user must do after setup.
func (o *setupOptions) next(c *cli, v setup.Vendor, done setupDone) []string {
	next := []string{v.Next}
	if _, err := c.env.lookPath("brokerctl"); err != nil {
		next = append(next, "put brokerctl into PATH: coding agents call it by this name")
	}
	s, err := c.settings()
	switch {
	case err != nil || done.Agent != "":
	case len(s.unchosen) > 0:
		next = append(next, fmt.Sprintf("choose the agent, since this folder has several: export BROKERD_AGENT=NAME (%s)",
			names(s.unchosen, len(s.unchosen))))
	default:
		next = append(next, "name the agent of each project, or its hooks only warn: brokerctl init --agent NAME --role ROLE")
	}
	return next
}

// setupWake returns the ways to wake an idle agent of this vendor, in the order in which they are tried.
func setupWake(v setup.Vendor, agent string) []string {
	run := "brokerctl agent run --agent " + shellWord(cmp.Or(agent, "NAME"))
	return []string{
		"the hook " + v.Hook + " (applies now): it waits up to 10 minutes for the next message",
		run + " --pty -- " + v.Programs[0],
		run + " --wake " + shellWord(v.Once+` "run brokerctl next"`),
	}
}

func (o *setupOptions) show(c *cli, cmd *cobra.Command, v setup.Vendor, done setupDone) error {
	if format, err := c.format(); err != nil || format == formatJSON {
		return cmp.Or(err, c.showValue(cmd, done, ""))
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s in %s%s\n", v.Title, clean(done.Folder), cond(o.dryRun, " (nothing is written)", ""))
	for _, change := range done.Changes {
		fmt.Fprintf(out, "  %-9s  %s (%s)\n", change.Action, change.Path, change.What)
		for _, conflict := range change.Conflicts {
			fmt.Fprintf(out, "             kept: %s\n", clean(conflict))
		}
	}
	for _, change := range done.Changes {
		for line := range strings.Lines(change.Diff) {
			fmt.Fprintln(out, c.diffLine(strings.TrimSuffix(line, "\n")))
		}
	}
	for _, next := range done.Next {
		fmt.Fprintln(out, "Next: "+next)
	}
	for i, way := range done.Wake {
		fmt.Fprintf(out, "%s  %d. %s\n", cond(i == 0, "To wake the agent while it is idle:\n", ""), i+1, way)
	}
	return nil
}

// diffLine colours a line of a diff, on a screen with colours.
func (c *cli) diffLine(line string) string {
	color := ""
	switch {
	case strings.HasPrefix(line, "+"):
		color = "32"
	case strings.HasPrefix(line, "-"):
		color = "31"
	case strings.HasPrefix(line, "@@"):
		color = "36"
	}
	if line = clean(line); color == "" || !c.screen().Color {
		return line
	}
	return "\x1b[" + color + "m" + line + "\x1b[0m"
}
