// Package work has the commands of tasks, blockers and handoffs, the next piece of work of an agent, and the report of
// a session.
package work
