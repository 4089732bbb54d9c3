// Package observe has the commands with which people watch and keep a broker: events, status, explain, backups.
package observe
