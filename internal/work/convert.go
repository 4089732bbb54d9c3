package work

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/internal/store"
)

// An Old is a piece of work that an earlier version of the broker kept in the table of its kind.
type Old[T Message] struct {
	Key, Session int64
	Item         T
	parts        []oldPart
}

type oldPart struct {
	name     string
	revision int64
	body     proto.Message
}

// Part adds a part to the item.
func (o *Old[T]) Part(name string, revision int64, body proto.Message) {
	o.parts = append(o.parts, oldPart{name, revision, body})
}

// Convert makes items of the rows of an old table. The query returns rows after a number, in the order of
// their numbers.
func Convert[T Message](d store.Converter, query string, k Kind[T], read func(*store.Rows) (Old[T], error)) error {
	for after := int64(0); ; {
		page, err := store.Collect(d.Query(query, after), read)
		if err != nil {
			return fmt.Errorf("convert %ss: %w", k.Noun, err)
		}
		if len(page) == 0 {
			return nil
		}
		for i := range page {
			if err := k.store(d, &page[i]); err != nil {
				return fmt.Errorf("convert %s %s: %w", k.Noun, page[i].Item.GetId(), err)
			}
		}
		after = page[len(page)-1].Key
	}
}

func (k *Kind[T]) store(d store.Converter, o *Old[T]) error {
	makeValid(o.Item.ProtoReflect())
	text, err := proto.Marshal(k.head(o.Item))
	if err != nil {
		return err
	}
	c := k.Columns(o.Item)
	err = d.Exec(insertItem, o.Key, o.Session, k.Number, int32(c.State), c.Opener, orNull(c.Agent), orNull(c.Role),
		orNull(c.Task), orNull(c.Scope), c.Due, c.Finished, o.Item.GetRevision(), text)
	for _, p := range o.parts {
		if err != nil {
			return err
		}
		var body []byte
		makeValid(p.body.ProtoReflect())
		if body, err = proto.Marshal(p.body); err == nil {
			err = d.Exec(upsertPart, o.Key, p.name, p.revision, body)
		}
	}
	return err
}

// makeValid replaces what is no UTF-8 in the texts of a message, and of those in it: a message cannot be encoded
// with it. Damaged rows can have such texts.
func makeValid(m protoreflect.Message) {
	valid := func(v protoreflect.Value) protoreflect.Value {
		return protoreflect.ValueOfString(strings.ToValidUTF8(v.String(), "\uFFFD"))
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			for i := range v.List().Len() {
				v.List().Set(i, valid(v.List().Get(i)))
			}
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				makeValid(v.List().Get(i).Message())
			}
		case f.IsList():
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, valid(v))
		case f.Message() != nil:
			makeValid(v.Message())
		}
		return true
	})
}
