package setup

import (
	"cmp"
	"context"
	"slices"
	"time"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/registration"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/prompt"
)

// setupHead is the comment in a configFile that setup has created.
const setupHead = "Created by brokerctl setup for this folder and below; flags and environment win."

// setupNaming is how long setup waits for a broker that knows which names are taken.
const setupNaming = 2 * time.Second

// planAgent returns the agent of this folder, and what setup does with the configFile and the .gitignore,
// so that the MCP server, the hooks and the shell act as this agent.
func (o *setupOptions) planAgent(ctx context.Context, c *command.Caller, v Vendor) (agent string, plan []*setupChange, err error) {
	s, err := c.Settings()
	if err == nil {
		err = s.Refused
	}
	if err != nil {
		return "", nil, err
	}
	store, err := c.Env.TrustStore()
	if err != nil {
		return "", nil, err
	}
	dir, err := c.Env.WorkingDir()
	if err != nil {
		return "", nil, err
	}
	agent = c.Global.Agent
	what := "agent " + agent
	if agent == "" {
		if v.Agent != "" {
			return v.Agent, nil, nil // an earlier setup has named it
		}
		if o.user || s.Agent.From != "" || len(s.Unchosen) > 0 {
			return s.Agent.Value, nil, nil
		}
		agent = nameOfFolder(ctx, c, dir)
		what = "agent " + agent + ", named after this folder"
	}
	file, err := newSetupChange(dir, setting.ConfigFile, what)
	if err != nil {
		return "", nil, err
	}
	had, err := setting.ParseConfig(file.at, []byte(file.before.Text))
	if err == nil {
		err = store.MayExtend(file.at, had)
	}
	if err != nil {
		return "", nil, problem.Usagef("%v; nothing was changed", err)
	}
	above, err := ConnectionAbove(c, file.at)
	if err != nil {
		return "", nil, err
	}
	file.add = &addition{
		store: store, above: above, head: setupHead, addr: c.Global.Addr, session: cmp.Or(s.Session.Value, "default"),
		agent: agent, role: o.role, hookSession: c.HookSession(), start: o.start,
	}
	text, err := file.add.to(file.at, []byte(file.before.Text))
	if err != nil {
		return "", nil, err
	}
	file.after = Content{Text: string(text), Exists: true}
	plan = append(plan, file)
	if top, done := ignoredByGit(c, dir); !done {
		ignore, err := newSetupChange(top, ".gitignore", setting.ConfigFile)
		if err != nil {
			return "", nil, err
		}
		if ignore.after, ignore.Conflicts, err = Ignore(setting.ConfigFile).Add(ignore.before); err != nil {
			return "", nil, problem.Usagef("%s: %v; nothing was changed", ignore.at, err)
		}
		plan = append(plan, ignore)
	}
	return agent, plan, nil
}

// nameOfFolder returns the name that the MCP server derives from the folder. Without a broker it does
// not know which names agents of other folders have.
func nameOfFolder(ctx context.Context, c *command.Caller, dir string) string {
	ctx, cancel := context.WithTimeout(ctx, setupNaming)
	defer cancel()
	name := registration.AgentName(dir)
	broker, err := c.Connect(ctx)
	if err != nil {
		return name
	}
	for _, free := range setting.Numbered(name) {
		if taken, err := registration.TakenElsewhere(ctx, broker, free, dir); err != nil || !taken {
			return prompt.Either(err == nil, free, name)
		}
	}
	return name
}

// planRemoval returns how --remove takes back the changes of planAgent: if the configFile is as setup
// created it, and no other coding agent is set up in this folder.
func (o *setupOptions) planRemoval(c *command.Caller, v Vendor) ([]*setupChange, error) {
	if o.user {
		return nil, nil
	}
	dir, err := c.Env.WorkingDir()
	if err != nil {
		return nil, err
	}
	file, err := newSetupChange(dir, setting.ConfigFile, "agent")
	if err != nil || file.before.Exists && !asSetupCreated(file.at, file.before.Text) {
		return nil, err
	}
	for _, other := range Vendors(Options{}) {
		if other.Name == v.Name {
			continue
		}
		if used, err := o.isSetUp(c, other); err != nil || used {
			file.What += ", still used by " + other.Title
			return []*setupChange{file}, err
		}
	}
	file.after = Content{}
	plan := []*setupChange{file}
	if top, _ := ignoredByGit(c, dir); top != "" {
		ignore, err := newSetupChange(top, ".gitignore", setting.ConfigFile)
		if err != nil {
			return nil, err
		}
		if ignore.after, _, err = Ignore(setting.ConfigFile).Remove(ignore.before); err != nil {
			return nil, problem.Usagef("%s: %v; nothing was changed", ignore.at, err)
		}
		plan = append(plan, ignore)
	}
	return slices.DeleteFunc(plan, func(s *setupChange) bool { return s.before == s.after }), nil
}

// asSetupCreated reports whether the text of a configFile is what setup writes for its only agent.
func asSetupCreated(path, text string) bool {
	file, err := setting.ParseConfig(path, []byte(text))
	if err != nil || len(file.Agents) != 1 {
		return false
	}
	name := file.Names()[0]
	created, err := addition{
		above: file.Values, head: setupHead, addr: file.Values["addr"], session: file.Values["session"],
		agent: name, role: file.Agents[name]["role"], hookSession: file.Agents[name]["hook_session"],
		start: file.Values["start"] == "true",
	}.to(path, nil)
	return err == nil && string(created) == text
}
