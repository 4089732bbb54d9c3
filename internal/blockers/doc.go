// Package blockers keeps the obstacles that stop agents, and notifies the agents that can remove them.
//
//	raise ──► OPEN ──acknowledge──► ACKNOWLEDGED ──┐
//	           │ ▲                        │        │ resolve
//	 escalate ─┘ └── acknowledgers fail ──┘        ▼
//	                 or deregister ──────────► RESOLVED
//
// A blocker is resolved by a call, when the agent that raised it deregisters, when its session closes, and,
// if it asks for that, when the awaited agent reports completed or the awaited task is done.
//
// While a blocker is OPEN, it has a time at which it escalates. The calendar then notifies the next
// role of the session's setting escalate_to that has an agent, and begins with the first role again
// after the last one. After mostEscalations, the time is empty.
//
// A blocker is an item of work.Table. Each change adds an entry of the timeline as a part. The row has the
// first bytes of the reason; the whole reason is a part if it is longer.
package blockers
