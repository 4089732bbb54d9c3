// Package words asks the broker for the words that complete a command line in a shell: names of agents, numbers of
// messages, ids of tasks, paths of locks.
package words
