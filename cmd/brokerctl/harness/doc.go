// Package harness keeps which session of a coding agent has which agent's name, on this machine.
//
// Several sessions of a coding agent may run in one folder, and setup has given all of them one name. The first
// session that is alive has that name, a further one gets NAME-2, NAME-3 and so on. A session that is resumed
// has its name again, unless another session has taken it since. The MCP server of a session, its hooks and the
// commands of its model are different processes, and few of them receive the id of the session. The others find
// it by the process of the coding agent, which is an ancestor of all of them.
//
// Each session has a small file in the user's cache. What is wrong with these files costs names, never more: a session
// without a file asks for a name as a new one does.
package harness
