package content

import "google.golang.org/protobuf/encoding/protowire"

const target protowire.Number = 10 // in brokerd.v1.Message

// The fields of brokerd.v1.Target. A content has at least one of them, and the last one counts.
const (
	toAgent protowire.Number = 1 + iota
	toRole
	toChannel
	toPattern
	toEveryone
)

// Target returns the target of a content as a person writes it, without decoding the rest: builder-1, role:builder,
// channel:general, build-*, everyone.
func Target(content []byte) (to string) {
	each(content, func(number protowire.Number, value []byte) {
		if number != target {
			return
		}
		each(value, func(kind protowire.Number, name []byte) {
			switch text := name != nil; { // a field of another kind is none of Target's
			case text && (kind == toAgent || kind == toPattern):
				to = string(name)
			case text && kind == toRole:
				to = "role:" + string(name)
			case text && kind == toChannel:
				to = "channel:" + string(name)
			case !text && kind == toEveryone:
				to = "everyone"
			}
		})
	})
	return to
}
