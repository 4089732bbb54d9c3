// Package local has the commands about this machine: up, down, dashboard and trust.
package local
