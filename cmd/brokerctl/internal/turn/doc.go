// Package turn has what locks and tokens have in common on the command line: the flags of a request, the wait for a
// place in a queue, the paths of locks, and what is said of those who are in the way.
package turn
