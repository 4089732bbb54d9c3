// Package work has what the features of joint work have in common: tasks, decisions, blockers,
// handoffs, votes and artifacts. It knows none of them.
//
// The message of the API is the item: a Table stores, lists, archives and exports it as it is, with
// columns for what lists, deadlines and the archive go by. A feature has code for what decides: who may
// make a change, and what follows from it.
//
//	call ──► Table.Change: once per request id, with the session and the caller (Tx)
//	           └─► feature: rules ──► Table.Append: the event      Post: messages and notices
//	                              └─► Table.Put, PutPart: the item
//	         Table.Await, List: reads        Hub: calls that wait       Calendar: changes that are due
//	         Backlog: changes with more rows than one function of the writer may have
//	Item ◄── feature: unfinished work that concerns an agent, for GetAgent, `next` and reports
package work
