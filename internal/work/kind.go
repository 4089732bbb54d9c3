package work

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/internal/jsonform"
	"brokerd/internal/store"
)

// The numbers of the kinds in the table of items. They are lasting.
const (
	Decisions = iota + 1
	Blockers
	Handoffs
	Votes
)

// A Message is the API's message of one kind of work. The broker stores it as it is.
type Message interface {
	proto.Message
	GetId() string
	GetRevision() int64
}

// A Kind is what a Table must know of one kind of work.
type Kind[T Message] struct {
	Number int                       // lasting
	Noun   string                    // such as vote
	Letter string                    // that begins the ids, such as v in v-4711
	Final  []protoreflect.EnumNumber // the states of finished items

	// Columns returns what lists, deadlines and the archive go by.
	Columns func(T) Columns
	// Title returns one line for people.
	Title func(T) string
	// PartFields are the fields of an item that are in its parts and not in its row. A part whose name is
	// that of such a field, or begins with it and a dash, is a message of the kind with that field. Get,
	// exports and the archive merge these parts into the item, in the order of their names. Such a part never
	// changes once it is stored: what changes is in the row, but for fields that the answers of changes leave
	// out. Other parts are messages of the feature's choice.
	PartFields []protoreflect.Name
	// Split returns an item as its row has it, with PartFields of which the row has something too; Join makes
	// the item of the row and its merged parts. Nil = the row has nothing of them.
	Split func(T) T
	Join  func(T)
	// Record returns what exports and the archive have of an item; nil = the item as Get returns it.
	Record func(q store.Querier, item T) (proto.Message, error)
	// Due makes the change of an item whose time has come. Nil = items have no deadlines.
	Due func(t *Tx, item T) error
	// Chore does the next page of a chore, and reports whether there may be more; nil = there are none.
	Chore func(tx *store.Tx, c *Chore) (more bool, err error)
	// Check returns what is wrong with an item and its parts, for CheckDatabase; nil = nothing can be.
	Check func(item T, parts []Part) []string
}

// Columns are the columns of an item beside its message.
type Columns struct {
	State       protoreflect.EnumNumber
	Opener      string
	Agent, Role string // who owes the next step; empty = no agent
	Task, Scope string // empty = none
	Due         time.Time
	Finished    time.Time // zero = it is unfinished
}

// A Part is a piece of an item that changes alone, or is too large for lists.
type Part struct {
	Name     string // unique among the parts of an item, and their order
	Revision int64  // of its last change
	Body     []byte // an encoded message
}

// Plural names the kind in files and metrics, such as votes.
func (k *Kind[T]) Plural() string { return k.Noun + "s" }

// newItem returns an empty item of a kind.
func newItem[T Message]() T {
	var none T
	return none.ProtoReflect().New().Interface().(T)
}

// head returns what the row has of an item. It shares the values with the item.
func (k *Kind[T]) head(item T) T {
	if k.Split != nil {
		return k.Split(item)
	}
	return Without(item, k.PartFields...)
}

// Without returns an item without some fields. It shares the values of the others with the item.
func Without[T Message](item T, fields ...protoreflect.Name) T {
	if len(fields) == 0 {
		return item
	}
	rest := newItem[T]()
	to := rest.ProtoReflect()
	item.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !slices.Contains(fields, f.Name()) {
			to.Set(f, v)
		}
		return true
	})
	return rest
}

// stateName returns the state of an item as events, exports and brokerctl spell it.
func stateName(item Message, state protoreflect.EnumNumber) string {
	field := item.ProtoReflect().Descriptor().Fields().ByName("state")
	return jsonform.EnumName(field.Enum(), state)
}
