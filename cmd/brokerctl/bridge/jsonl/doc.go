// Package jsonl is the format jsonl of the bridge: one file for each agent, to which every sender appends its messages
// as lines of JSON.
package jsonl
