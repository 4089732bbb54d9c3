package broker

import (
	"encoding/json"
	"slices"
)

// A Topic narrows claims to the messages of one thread, task or correlation, or to those of some
// senders. Empty fields do not restrict.
type Topic struct {
	Thread      string
	Task        string
	Correlation string
	Senders     []string
}

// Empty reports whether the topic names nothing.
func (t *Topic) Empty() bool {
	return t.Thread == "" && t.Task == "" && t.Correlation == "" && len(t.Senders) == 0
}

// covers reports whether a message belongs to the topic.
func (t *Topic) covers(d *ready) bool {
	return (len(t.Senders) == 0 || slices.Contains(t.Senders, d.Sender)) &&
		(t.Thread == "" || t.Thread == d.ThreadID()) &&
		(t.Task == "" || t.Task == d.task) &&
		(t.Correlation == "" || t.Correlation == d.correlation)
}

// ThreadStart returns revision and id of the message that a thread is named after. That message
// does not name the thread itself. The revision is -1 if the thread has another name.
func ThreadStart(name string) (revision int64, id []byte) {
	if ref, ok := ParseRef(name); ok && ref.ID != (ID{}) && ref.ID.String() == name {
		return ref.Revision, ref.ID[:]
	}
	return -1, nil
}

// A filter chooses among the ready deliveries.
type filter struct {
	types    []string
	priority int // this or higher
	topic    Topic
}

func (f *filter) empty() bool { return len(f.types) == 0 && f.priority <= 1 && f.topic.Empty() }

func (f *filter) matches(d *ready) bool {
	return d.priority >= f.priority && (len(f.types) == 0 || slices.Contains(f.types, d.kind)) &&
		(f.topic.Empty() || f.topic.covers(d))
}

// args are the arguments of the condition filtered: those before it, the name of the agent whose
// own messages it leaves out, its values, and the limit.
func (f *filter) args(before []any, self string, limit int) []any {
	t := &f.topic
	first, id := ThreadStart(t.Thread)
	types, senders := listJSON(f.types), listJSON(t.Senders)
	return append(before, self, types, types, f.priority, senders, senders,
		t.Thread, t.Thread, first, id, t.Task, t.Task, t.Correlation, t.Correlation, limit)
}

// listJSON is a list as queries take it, nil for an empty one.
func listJSON(list []string) any {
	if len(list) == 0 {
		return nil
	}
	b, _ := json.Marshal(list) // strings always marshal
	return string(b)
}
