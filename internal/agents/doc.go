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
// A lease says how long the broker believes an agent alive without hearing from it. The lease is a
// row; when the agent was last heard of is memory, and a heartbeat that reports nothing new writes
// nothing. What must happen in the same transaction when a registration begins or ends is a hook.
package agents
