// Package people has the commands of agents, sessions and credentials.
package people
