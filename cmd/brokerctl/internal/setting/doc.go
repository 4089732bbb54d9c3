// Package setting finds out where brokerctl calls, as whom, and how it prints: from the flags of every command, the
// variables of the environment and the file .brokerd.yaml, in this order.
//
// A setting remembers where it comes from, so that an error can name the flag, the variable or the file. What the file
// says of the connection counts only if the user trusts the file (truststore.go).
package setting
