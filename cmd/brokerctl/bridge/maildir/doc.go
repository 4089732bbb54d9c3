// Package maildir is the format maildir of the bridge: an inbox and an outbox for each agent, with a file for each
// message, and a folder of shared files.
package maildir
