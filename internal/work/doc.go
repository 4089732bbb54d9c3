// Package work has what the features of joint work have in common: tasks, decisions, blockers,
// handoffs, votes and artifacts. It knows none of them.
//
//	feature ──► directory: the session, the caller, other agents
//	        ──► Post: messages and notices, in the transaction of the change
//	        ──► Hub: calls that wait for a change      Calendar: changes that are due
//	        ──► Backlog: changes with more rows than one function of the writer may have
//	Item ◄── feature: unfinished work that concerns an agent, for GetAgent, `next` and reports
package work
