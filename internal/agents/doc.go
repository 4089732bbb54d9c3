// Package agents is the registry of agents: who takes part, in which role, and how each one stands.
//
//	RegisterAgent ──► registered, incarnation 1 ──RegisterAgent──► incarnation 2, 3, …
//	                      │  ▲                                          │
//	       DeregisterAgent│  │RegisterAgent                             │
//	                      ▼  │                                          │
//	                  deregistered ◄───────────DeregisterAgent──────────┘
//
// The row of an agent stays when it is deregistered, so that its incarnations go on growing and a
// client that believes in an old one is always recognised.
//
// A lease is the time for which the broker considers an agent alive after its last call. The lease
// is in the agent's row. Presence keeps the time of the last call in memory: a heartbeat that reports
// nothing new writes nothing. The broker writes these times at most a minute later, for all agents in one
// transaction, and when it stops. What must happen in the same transaction when a registration
// begins or ends is a hook.
package agents
