// Package supervise runs other programs as agents or for them: agent run, lock run, token run, work and task work.
//
// The program inherits the terminal or the pipes. brokerctl renews what the program needs, such as a lease or a lock, says
// what it has lost, and returns its exit code.
package supervise
