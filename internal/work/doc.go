// Package work has what the features of joint work have in common: tasks, decisions, blockers,
// handoffs, votes and artifacts. Of them it knows only the numbers of the kinds in the table of items.
//
// Of decisions, blockers, handoffs and votes, the message of the API is the item: a Table stores, lists,
// archives and exports it as it is, with columns for what lists, deadlines and the archive go by. A feature has
// code for what decides: who may make a change, and what follows from it. Tasks and artifacts keep tables of
// their own.
//
//	call ──► Table.Change: once per request id, with the session and the caller (Tx)
//	           └─► feature: rules ──► Table.Append: the event      Post: messages and notices
//	                              └─► Table.Put, PutPart: the item
//	         Table.Await, List: reads        Hub: calls that wait       Calendar: changes that are due
//	         Backlog: changes with more rows than one function of the writer may have
//	Item ◄── feature: unfinished work that concerns an agent, for GetAgent, `next` and reports
package work
