// Package work has what the features of joint work have in common: tasks, decisions, blockers,
// handoffs, votes and artifacts. It knows none of them, and it has no tables.
//
//	feature ──► Directory: the session, the caller, other agents
//	        ──► Post: messages and notices, in the transaction of the change
//	        ──► Hub: calls that wait for a change      Calendar: changes that are due
//	Item ◄── feature: unfinished work that concerns an agent, for GetAgent, `next` and reports
package work
