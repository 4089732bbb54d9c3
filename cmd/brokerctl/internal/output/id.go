package output

import (
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// idFields are the fields that name a thing for the commands that take it. The first that a message has counts.
var idFields = []protoreflect.Name{"claim_id", "id", "fence", "name", "key", "thread_id", "mailbox"}

// writeIDs writes what names the things in a message, one a line.
func writeIDs(w io.Writer, m proto.Message) error {
	for _, id := range ids(m.ProtoReflect()) {
		if _, err := fmt.Fprintln(w, id); err != nil {
			return err
		}
	}
	return nil
}

// ids returns the name of a thing, or else those of the first field with things that have names.
func ids(m protoreflect.Message) []string {
	fields := m.Descriptor().Fields()
	for _, name := range idFields {
		if f := fields.ByName(name); f != nil && f.Message() == nil && !f.IsList() && m.Has(f) {
			return []string{m.Get(f).String()}
		}
	}
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() == nil || f.IsMap() || !m.Has(f) {
			continue
		}
		var all []string
		if f.IsList() {
			for j := range m.Get(f).List().Len() {
				all = append(all, ids(m.Get(f).List().Get(j).Message())...)
			}
		} else {
			all = ids(m.Get(f).Message())
		}
		if len(all) > 0 {
			return all
		}
	}
	return nil
}
