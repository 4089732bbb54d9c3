package histories_test

import (
	"fmt"
	"strings"
)

func (t turns) String() string {
	var b strings.Builder
	write := func(name string, places []place) {
		fmt.Fprintf(&b, "%s:", name)
		for _, p := range places {
			fmt.Fprintf(&b, " [%s %v %v]", agentName(p.owner), t.menu.asks[p.ask], p.number)
		}
		b.WriteString("; ")
	}
	write("held", t.grants)
	write("waiting", t.tickets)
	write("aborted", t.aborted)
	fmt.Fprintf(&b, "last %d", t.last)
	return b.String()
}

func describeTurns(m *menu, c turnCall, output any) string {
	names := []string{"request", "granted", "queued", "aborted", "take", "busy", "release", "release all",
		"extend", "fenced", "pass", "list", "look", "lapse", "expire"}
	what := names[c.verb]
	if c.verb != list && c.verb != releaseAll {
		what += " " + m.asks[c.ask].String()
	}
	if c.fence != 0 {
		what += fmt.Sprintf(" (fence %d)", c.fence)
	}
	if c.verb == pass {
		what += " to " + agentName(c.to)
	}
	if output == nil {
		return what + " -> ?"
	}
	a := output.(turnAnswer)
	what += fmt.Sprintf(" -> %t %d", a.done, a.number)
	if c.verb == release || c.verb == releaseAll {
		what += fmt.Sprintf(" released %d cancelled %d", a.released, a.cancel)
	}
	if c.verb == list || c.verb == look {
		t := turns{menu: m, grants: a.grants, tickets: a.tickets, last: a.number}
		what += " " + t.String()
	}
	return what
}
