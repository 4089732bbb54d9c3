// Package proto has the texts of the API's definitions. Their comments are the reference of the API,
// and compiled descriptors do not have them.
package proto

import "embed"

// Files are the definitions, as brokerd/v1/NAME.proto.
//
//go:embed brokerd/v1/*.proto
var Files embed.FS
