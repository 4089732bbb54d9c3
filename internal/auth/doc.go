// Package auth keeps the credentials of the broker's clients.
package auth
