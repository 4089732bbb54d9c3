package agentmessages

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

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
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
	agents        map[string]mailfile.Fields
	subscriptions map[string][]string // type of events → agents
}

// readRegistry reads registry.json. Parts that it cannot read are empty.
func (f *format) readRegistry() registry {
	data, err := f.b.Folder.Read(registryFile)
	if err != nil {
		return registry{}
	}
	all, err := mailfile.Parse(data)
	if err != nil {
		return registry{}
	}
	r := registry{agents: map[string]mailfile.Fields{}, subscriptions: map[string][]string{}}
	_ = json.Unmarshal(all["agents"], &r.agents)
	_ = json.Unmarshal(all["event_subscriptions"], &r.subscriptions)
	return r
}

// profiles returns the roles and capabilities of the agents, without those that are no names.
func (r registry) profiles() map[string]engine.Profile {
	profiles := map[string]engine.Profile{}
	for name, entry := range r.agents {
		var p engine.Profile
		_ = json.Unmarshal(entry["role"], &p.Role)
		if !engine.AgentName.MatchString(p.Role) {
			p.Role = ""
		}
		_ = json.Unmarshal(entry["capabilities"], &p.Capabilities)
		p.Capabilities = slices.DeleteFunc(p.Capabilities, func(c string) bool { return !engine.AgentName.MatchString(c) })
		p.Capabilities = p.Capabilities[:min(len(p.Capabilities), maxCapabilities)]
		profiles[name] = p
	}
	return profiles
}

// checkRegistry creates registry.json and routing.json if they are missing. A registry.json that is no registry belongs
// to other programs: it stays, and checkRegistry reports it once for each of its contents.
func (f *format) checkRegistry() error {
	err := f.readableRegistry()
	if mailfile.Rejected(err) && f.b.Folder.Unsettled(registryFile) {
		err = nil // another program may be writing it
	}
	if f.b.Health.Note("", "read "+registryFile, err) {
		f.b.Log(fmt.Sprintf("%s stays as it is: %s", registryFile, engine.Plain(err)))
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
	return errors.Join(f.create(registryFile, initial), f.create(routingFile, defaultRouting))
}

// readableRegistry returns why registry.json cannot be read as a registry.
func (f *format) readableRegistry() error {
	data, err := f.b.Folder.Read(registryFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := mailfile.Parse(data)
	if err != nil {
		return err
	}
	var agents map[string]mailfile.Fields
	return all.Take("agents", &agents)
}

// create writes a file unless it exists.
func (f *format) create(name, text string) error {
	if _, err := f.b.Folder.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp := path.Join(editing, name+".new")
	if err := f.b.Folder.WriteNew(temp, []byte(text)); err != nil {
		return err
	}
	return f.b.Folder.Rename(temp, name)
}

// updateRegistry writes the agents of the session into registry.json, makes an inbox for each, and
// subscribes local agents to the events that registry.json names. What others keep in registry.json
// stays there.
func (f *format) updateRegistry(ctx context.Context) error {
	if err := f.checkRegistry(); err != nil {
		return err
	}
	agents := f.b.Roster.All()
	inboxes := []string{engine.OperatorsName} // an agent answers an operator in the inbox of the sender's name
	for _, a := range agents {
		inboxes = append(inboxes, a.GetName())
	}
	for _, name := range inboxes {
		if err := f.b.Folder.MkdirAll(path.Join(inboxesDir, name), 0o755); err != nil {
			return err
		}
	}
	err := edit(f.b.Folder, registryFile, func(data []byte) ([]byte, error) {
		all, err := mailfile.Parse(data)
		if err != nil {
			return nil, err
		}
		entries := map[string]mailfile.Fields{}
		if err := all.Take("agents", &entries); err != nil {
			return nil, err
		}
		before, err := json.Marshal(entries)
		if err != nil {
			return nil, err
		}
		for _, a := range agents {
			entry := entries[a.GetName()]
			if entry == nil {
				entry = mailfile.Fields{}
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
func (f *format) describe(entry mailfile.Fields, a *pb.Agent) {
	entry.Set("role", f.b.Roster.RoleToWrite(a.GetName(), mailfile.TextOf(entry["role"]))) // set ignores ""
	setNew(entry, "worktree_path", a.GetWorktree())
	setNew(entry, "capabilities", a.GetCapabilities())
	setNew(entry, "registered_at", a.GetRegisteredAt().AsTime().UTC().Format(fileTime))
	word := prompt.Either(a.GetHealth() == pb.Health_HEALTH_FAILED, "failed",
		strings.ToLower(strings.TrimPrefix(a.GetStatus().String(), "AGENT_STATUS_")))
	entry.Set("status", word)
	if a.GetLastSeen() != nil {
		entry.Set("last_seen", a.GetLastSeen().AsTime().UTC().Format(fileTime))
	}
	var count int64
	_ = json.Unmarshal(entry["message_count"], &count) // another value counts as 0
	if received := a.GetMessages().GetReceived(); received > count || entry["message_count"] == nil {
		entry["message_count"], _ = json.Marshal(received)
	}
	if f.b.Roster.Ours(a) {
		delete(entry, engine.ViaLabel)
	} else {
		entry.Set(engine.ViaLabel, viaBroker)
	}
}

// setNew is set for a field that does not exist yet.
func setNew(f mailfile.Fields, name string, value any) {
	if f[name] == nil {
		f.Set(name, value)
	}
}

// subscribe subscribes the local agents to the channels of the events that registry.json names, and
// ends the subscriptions that it does not name any more.
func (f *format) subscribe(ctx context.Context) error {
	wanted := map[[2]string]bool{}
	for kind, names := range f.readRegistry().subscriptions {
		for _, name := range names {
			wanted[[2]string{name, "event/" + kind}] = true
		}
	}
	local := map[string]bool{}
	for _, name := range f.b.Roster.Joined() {
		local[name] = true
	}
	ctx, cancel := context.WithTimeout(ctx, engine.CallTimeout)
	defer cancel()
	for sub := range wanted {
		if f.subscribed[sub] || !local[sub[0]] {
			continue
		}
		_, err := f.b.Broker.As(sub[0]).Channels().SubscribeChannel(ctx, &pb.SubscribeChannelRequest{Channel: sub[1]})
		if err := engine.Refused(err); err != nil {
			if !mailfile.Rejected(err) {
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
		_, err := f.b.Broker.As(sub[0]).Channels().UnsubscribeChannel(ctx, &pb.UnsubscribeChannelRequest{Channel: sub[1]})
		if err != nil {
			return err
		}
		delete(f.subscribed, sub)
	}
	return nil
}
