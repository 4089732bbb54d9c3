// Package mailfile reads and writes the fields of a message in a file. What a message of the broker has no field for
// becomes a label, and from there a field of the file again.
package mailfile
