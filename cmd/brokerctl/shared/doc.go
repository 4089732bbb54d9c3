// Package shared has the commands of what agents share: locks, tokens, state and artifacts.
package shared
