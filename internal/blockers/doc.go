// Package blockers keeps the obstacles that stop agents, and notifies the agents that can remove them.
//
//	raise ──► OPEN ──acknowledge──► ACKNOWLEDGED ──┐
//	           │ ▲                        │        │ resolve
//	 escalate ─┘ └── acknowledgers fail ──┘        ▼
//	                 or deregister ──────────► RESOLVED
//
// A blocker is resolved by a call, when the agent that raised it deregisters, and, if it asks for
// that, when the awaited agent reports completed or the awaited task is done.
//
// While a blocker is OPEN, it has a time at which it escalates. The calendar then notifies the next
// role of the session's setting escalate_to that has an agent, and begins with the first role again
// after the last one. After mostEscalations, the time is empty.
//
// A row has the whole timeline as JSON: it is bounded, and every reader needs it. The agents that work
// on a blocker have rows besides, so that the end of an agent finds its blockers without reading
// others.
package blockers
