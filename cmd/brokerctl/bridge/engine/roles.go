package engine

import (
	"regexp"
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

// A Profile is what registry.json of agent-messages says about an agent.
type Profile struct {
	Role         string
	Capabilities []string
}

// A Role is the role of the agents whose names match a pattern.
type Role struct {
	Names string // a name; * stands for any characters
	Role  string
}

// covers reports whether the role is that of an agent.
func (r Role) covers(agent string) bool {
	parts := strings.Split(regexp.QuoteMeta(r.Names), `\*`)
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(agent)
}

var (
	// instance is the end of a name in which the agents of one role differ.
	instance = regexp.MustCompile(`[-_.]?[0-9]+$`)
	// parted is the form agent_ROLE_NUMBER or agent_ROLE_NUMBER_ID of a name.
	parted = regexp.MustCompile(`^agent_([A-Za-z0-9].*?)_[0-9]+(_[A-Za-z0-9-]+)?$`)
)

// roleOf returns the role that a name has in it: engineer for agent_engineer_1_abc123, and otherwise the name
// without its number, such as builder for builder, builder-2 and builder_02.
func roleOf(name string) string {
	if found := parted.FindStringSubmatch(name); found != nil {
		return found[1]
	}
	if role := instance.ReplaceAllString(name, ""); role != "" {
		return role
	}
	return name
}

// roleToSet returns the role with which the bridge registers an agent: the first one of the options for its name,
// that of its profile, or that in its name. It returns "" if the agent keeps the role that it is registered with.
func (r *Roster) roleToSet(name string, registered *pb.Agent) string {
	for _, role := range r.roles {
		if role.covers(name) {
			return role.Role
		}
	}
	if role := r.profiles[name].Role; role != "" {
		return role
	}
	if registered.GetRole() != "" {
		return ""
	}
	return roleOf(name)
}
