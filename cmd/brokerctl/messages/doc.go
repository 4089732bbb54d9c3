// Package messages has the commands of messages, mailboxes, threads, channels, types and dead letters.
package messages
