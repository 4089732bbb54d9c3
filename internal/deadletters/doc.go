// Package deadletters changes deliveries that no consumer finishes: it moves waiting messages from one mailbox to
// another, and makes dead letters of the mail that an agent leaves when it deregisters.
package deadletters
