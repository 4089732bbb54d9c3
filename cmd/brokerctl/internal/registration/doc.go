// Package registration has what a command says of the agent that it registers: its flags, and the name that an agent
// without one gets from its folder.
package registration
