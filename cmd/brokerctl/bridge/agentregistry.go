package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// viaBroker is the value of "via" in registry.json for agents that have not joined through the folder.
const viaBroker = "broker"

// defaultRouting is the routing.json of a new folder.
const defaultRouting = `{
  "routes": {
    "direct": "inbox/{recipient}/",
    "broadcast": "broadcasts/",
    "event": "events/{event_type}/",
    "archive": "archive/{date}/"
  },
  "priority_queues": {"critical": 1, "high": 2, "normal": 3, "low": 4}
}
`

// maxCapabilities is the broker's limit for an agent.
const maxCapabilities = 64

// A registry is what the bridge reads of registry.json.
type registry struct {
	agents        map[string]fields
	subscriptions map[string][]string // type of events → agents
}

// readRegistry reads registry.json. Parts that it cannot read are empty.
func (f *agentMessages) readRegistry() registry {
	data, err := f.b.read(agentRegistry)
	if err != nil {
		return registry{}
	}
	all, err := parse(data)
	if err != nil {
		return registry{}
	}
	r := registry{agents: map[string]fields{}, subscriptions: map[string][]string{}}
	_ = json.Unmarshal(all["agents"], &r.agents)
	_ = json.Unmarshal(all["event_subscriptions"], &r.subscriptions)
	return r
}

// profiles returns the roles and capabilities of the agents, without those that are no names.
func (r registry) profiles() map[string]profile {
	profiles := map[string]profile{}
	for name, entry := range r.agents {
		var p profile
		_ = json.Unmarshal(entry["role"], &p.role)
		if !agentName.MatchString(p.role) {
			p.role = ""
		}
		_ = json.Unmarshal(entry["capabilities"], &p.capabilities)
		p.capabilities = slices.DeleteFunc(p.capabilities, func(c string) bool { return !agentName.MatchString(c) })
		p.capabilities = p.capabilities[:min(len(p.capabilities), maxCapabilities)]
		profiles[name] = p
	}
	return profiles
}

// checkRegistry creates registry.json and routing.json if they are missing. A registry.json that is no registry belongs
// to other programs: it stays, and checkRegistry reports it once for each of its contents.
func (f *agentMessages) checkRegistry() error {
	err := f.readableRegistry()
	if rejected(err) && f.b.unsettled(agentRegistry) {
		err = nil // another program may be writing it
	}
	if f.b.health.note("", "read "+agentRegistry, err) {
		f.b.Log(fmt.Sprintf("%s stays as it is: %s", agentRegistry, plain(err)))
	}
	now, err := json.Marshal(time.Now().UTC().Format(fileTime))
	if err != nil {
		return err
	}
	initial := `{
  "initialized_at": ` + string(now) + `,
  "message_count": 0,
  "agents": {},
  "event_subscriptions": {},
  "message_retention_hours": 72
}
`
	return errors.Join(f.create(agentRegistry, initial), f.create(agentRouting, defaultRouting))
}

// readableRegistry returns why registry.json cannot be read as a registry.
func (f *agentMessages) readableRegistry() error {
	data, err := f.b.read(agentRegistry)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := parse(data)
	if err != nil {
		return err
	}
	var agents map[string]fields
	return all.take("agents", &agents)
}

// create writes a file unless it exists.
func (f *agentMessages) create(name, text string) error {
	if _, err := f.b.root.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp := path.Join(editing, name+".new")
	if err := writeNew(f.b.root, temp, []byte(text)); err != nil {
		return err
	}
	return f.b.root.Rename(temp, name)
}

// updateRegistry writes the agents of the session into registry.json, makes an inbox for each, and
// subscribes local agents to the events that registry.json names. What others keep in registry.json
// stays there.
func (f *agentMessages) updateRegistry(ctx context.Context) error {
	if err := f.checkRegistry(); err != nil {
		return err
	}
	agents := f.b.roster.all()
	inboxes := []string{operatorsName} // an agent answers an operator in the inbox of the sender's name
	for _, a := range agents {
		inboxes = append(inboxes, a.GetName())
	}
	for _, name := range inboxes {
		if err := f.b.root.MkdirAll(path.Join(agentInboxes, name), 0o755); err != nil {
			return err
		}
	}
	err := f.b.edit(agentRegistry, func(data []byte) ([]byte, error) {
		all, err := parse(data)
		if err != nil {
			return nil, err
		}
		entries := map[string]fields{}
		if err := all.take("agents", &entries); err != nil {
			return nil, err
		}
		before, err := json.Marshal(entries)
		if err != nil {
			return nil, err
		}
		for _, a := range agents {
			entry := entries[a.GetName()]
			if entry == nil {
				entry = fields{}
				entries[a.GetName()] = entry
			}
			f.describe(entry, a)
		}
		after, err := json.Marshal(entries)
		if err != nil || bytes.Equal(before, after) {
			return data, err
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, after, "  ", "  "); err != nil {
			return nil, err
		}
		return withField(data, "agents", indented.Bytes())
	})
	if err != nil {
		return err
	}
	return f.subscribe(ctx)
}

// describe writes what the broker knows of an agent into its entry.
func (f *agentMessages) describe(entry fields, a *pb.Agent) {
	entry.set("role", f.b.roster.roleToWrite(a.GetName(), textOf(entry["role"]))) // set ignores ""
	entry.setNew("worktree_path", a.GetWorktree())
	entry.setNew("capabilities", a.GetCapabilities())
	entry.setNew("registered_at", a.GetRegisteredAt().AsTime().UTC().Format(fileTime))
	word := strings.ToLower(strings.TrimPrefix(a.GetStatus().String(), "AGENT_STATUS_"))
	if a.GetHealth() == pb.Health_HEALTH_FAILED {
		word = "failed"
	}
	entry.set("status", word)
	if a.GetLastSeen() != nil {
		entry.set("last_seen", a.GetLastSeen().AsTime().UTC().Format(fileTime))
	}
	var count int64
	_ = json.Unmarshal(entry["message_count"], &count) // another value counts as 0
	if received := a.GetMessages().GetReceived(); received > count || entry["message_count"] == nil {
		entry["message_count"], _ = json.Marshal(received)
	}
	if f.b.roster.ours(a) {
		delete(entry, viaLabel)
	} else {
		entry.set(viaLabel, viaBroker)
	}
}

// setNew is set for a field that does not exist yet.
func (f fields) setNew(name string, value any) {
	if f[name] == nil {
		f.set(name, value)
	}
}

// subscribe subscribes the local agents to the channels of the events that registry.json names, and
// ends the subscriptions that it does not name any more.
func (f *agentMessages) subscribe(ctx context.Context) error {
	wanted := map[[2]string]bool{}
	for kind, names := range f.readRegistry().subscriptions {
		for _, name := range names {
			wanted[[2]string{name, "event/" + kind}] = true
		}
	}
	local := map[string]bool{}
	for _, name := range f.b.roster.joined() {
		local[name] = true
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for sub := range wanted {
		if f.subscribed[sub] || !local[sub[0]] {
			continue
		}
		_, err := f.b.broker.As(sub[0]).Channels().SubscribeChannel(ctx, &pb.SubscribeChannelRequest{Channel: sub[1]})
		if err := refused(err); err != nil {
			if !rejected(err) {
				return err
			}
			f.b.Log("subscribe " + sub[0] + " to " + sub[1] + ": " + err.Error())
		}
		f.subscribed[sub] = true
	}
	for sub := range f.subscribed {
		if wanted[sub] || !local[sub[0]] {
			continue
		}
		_, err := f.b.broker.As(sub[0]).Channels().UnsubscribeChannel(ctx, &pb.UnsubscribeChannelRequest{Channel: sub[1]})
		if err != nil {
			return err
		}
		delete(f.subscribed, sub)
	}
	return nil
}
