// Package transfer moves the content of artifacts between files and the broker, and shows how far it is.
package transfer
