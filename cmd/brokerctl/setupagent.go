package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"brokerd/cmd/brokerctl/setup"
	"brokerd/internal/prompt"
)

// setupHead is the comment in a configFile that setup has created.
const setupHead = "Created by brokerctl setup for this folder and below; flags and environment win."

// setupNaming is how long setup waits for a broker that knows which names are taken.
const setupNaming = 2 * time.Second

// planAgent returns the agent of this folder, and what setup does with the configFile and the .gitignore,
// so that the MCP server, the hooks and the shell act as this agent.
func (o *setupOptions) planAgent(ctx context.Context, c *cli, v setup.Vendor) (agent string, plan []*setupChange, err error) {
	s, err := c.settings()
	if err == nil {
		err = s.refused
	}
	if err != nil {
		return "", nil, err
	}
	store, err := c.env.trustStore()
	if err != nil {
		return "", nil, err
	}
	dir, err := c.env.dir()
	if err != nil {
		return "", nil, err
	}
	agent = c.global.agent
	what := "agent " + agent
	if agent == "" {
		if v.Agent != "" {
			return v.Agent, nil, nil // an earlier setup has named it
		}
		if o.user || s.agent.from != "" || len(s.unchosen) > 0 {
			return s.agent.value, nil, nil
		}
		agent = nameOfFolder(ctx, c, dir)
		what = "agent " + agent + ", named after this folder"
	}
	file, err := newSetupChange(dir, configFile, what)
	if err != nil {
		return "", nil, err
	}
	had, err := parseConfig(file.at, []byte(file.before.Text))
	if err == nil {
		err = store.mayExtend(file.at, had)
	}
	if err != nil {
		return "", nil, usagef("%v; nothing was changed", err)
	}
	above, err := c.connectionAbove(file.at)
	if err != nil {
		return "", nil, err
	}
	file.add = &addition{
		store: store, above: above, head: setupHead, addr: c.global.addr, session: cmp.Or(s.session.value, "default"),
		agent: agent, role: o.role, hookSession: c.hookSession(), start: o.start,
	}
	text, err := file.add.to(file.at, []byte(file.before.Text))
	if err != nil {
		return "", nil, err
	}
	file.after = setup.Content{Text: string(text), Exists: true}
	plan = append(plan, file)
	if top, done := c.ignoredByGit(dir); !done {
		ignore, err := newSetupChange(top, ".gitignore", configFile)
		if err != nil {
			return "", nil, err
		}
		if ignore.after, ignore.Conflicts, err = setup.Ignore(configFile).Add(ignore.before); err != nil {
			return "", nil, usagef("%s: %v; nothing was changed", ignore.at, err)
		}
		plan = append(plan, ignore)
	}
	return agent, plan, nil
}

// nameOfFolder returns the name that the MCP server derives from the folder. Without a broker it does
// not know which names agents of other folders have.
func nameOfFolder(ctx context.Context, c *cli, dir string) string {
	ctx, cancel := context.WithTimeout(ctx, setupNaming)
	defer cancel()
	name := agentName(dir)
	broker, err := c.connect(ctx)
	if err != nil {
		return name
	}
	for _, free := range numbered(name) {
		if taken, err := takenElsewhere(ctx, broker, free, dir); err != nil || !taken {
			return prompt.Either(err == nil, free, name)
		}
	}
	return name
}

// planRemoval returns how --remove takes back the changes of planAgent: if the configFile is as setup
// created it, and no other coding agent is set up in this folder.
func (o *setupOptions) planRemoval(c *cli, v setup.Vendor) ([]*setupChange, error) {
	if o.user {
		return nil, nil
	}
	dir, err := c.env.dir()
	if err != nil {
		return nil, err
	}
	file, err := newSetupChange(dir, configFile, "agent")
	if err != nil || file.before.Exists && !asSetupCreated(file.at, file.before.Text) {
		return nil, err
	}
	for _, other := range setup.Vendors(setup.Options{}) {
		if other.Name == v.Name {
			continue
		}
		if used, err := o.isSetUp(c, other); err != nil || used {
			file.What += ", still used by " + other.Title
			return []*setupChange{file}, err
		}
	}
	file.after = setup.Content{}
	plan := []*setupChange{file}
	if top, _ := c.ignoredByGit(dir); top != "" {
		ignore, err := newSetupChange(top, ".gitignore", configFile)
		if err != nil {
			return nil, err
		}
		if ignore.after, _, err = setup.Ignore(configFile).Remove(ignore.before); err != nil {
			return nil, usagef("%s: %v; nothing was changed", ignore.at, err)
		}
		plan = append(plan, ignore)
	}
	return slices.DeleteFunc(plan, func(s *setupChange) bool { return s.before == s.after }), nil
}

// asSetupCreated reports whether the text of a configFile is what setup writes for its only agent.
func asSetupCreated(path, text string) bool {
	file, err := parseConfig(path, []byte(text))
	if err != nil || len(file.agents) != 1 {
		return false
	}
	name := file.names()[0]
	created, err := addition{
		above: file.values, head: setupHead, addr: file.values["addr"], session: file.values["session"],
		agent: name, role: file.agents[name]["role"], hookSession: file.agents[name]["hook_session"],
		start: file.values["start"] == "true",
	}.to(path, nil)
	return err == nil && string(created) == text
}
