// Package call has the command that makes any call of the API. It is built from the descriptors of the protos alone:
// a flag for each field of the request, and the comments of the protos as its help.
package call
