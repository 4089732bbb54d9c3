package state

import (
	"encoding/json"
	"strconv"

	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/jsonline"
)

// listed is how many changes the event of a transaction lists.
const listed = 100

// append adds the event of a turn to the log and returns its revision.
func (t *turn) append(rows []row, changes []Change) (int64, error) {
	e := t.entry(t.kind)
	if t.kind == transacted {
		list := make([]map[string]any, 0, min(len(changes), listed))
		for i := range changes[:min(len(changes), listed)] {
			list = append(list, map[string]any{"namespace": changes[i].Namespace, "key": changes[i].Key, "deleted": changes[i].Delete})
			if i < related {
				e.Related = append(e.Related, changes[i].String())
			}
		}
		text, err := json.Marshal(map[string]any{"changes": list, "count": len(changes)})
		if err != nil {
			return 0, err
		}
		e.Details = string(text)
		e.Summary = strconv.Itoa(len(changes)) + " changes of state in one, the first of " + changes[0].String()
		return t.log.Append(t.tx, e)
	}
	r, version := &rows[0], strconv.FormatInt(rows[0].version+1, 10)
	verb, kind := "put ", changes[0].Value.Type
	if changes[0].Delete {
		verb, kind = "deleted ", r.kind
	}
	e.Summary = verb + r.String() + ", version " + version
	e.TaskID = r.task
	if task := changes[0].Task; task != nil {
		e.TaskID = *task
	}
	e.Related = []string{r.String()}
	e.Details = string(appendDetails(r, kind, version)) + "}"
	return t.log.Append(t.tx, e)
}

// The types of events.
const (
	Put        = "state.put"
	Deleted    = "state.deleted"
	transacted = "state.transacted"
	expired    = "state.expired"
	appended   = "context_updated"
)

// related is how many keys of a transaction its event is about.
const related = 16

// entry returns what all events of a turn have in common.
func (t *turn) entry(kind string) events.Entry {
	return events.Entry{Session: t.author.Session, Category: events.State, Type: kind, Source: t.author.Name, SourceRole: t.author.Role}
}

// appendDetails writes a JSON object but its end, without the detour over reflection: it is on the path of every put.
func appendDetails(r *row, kind Type, version string) []byte {
	text := make([]byte, 0, 64+len(r.Namespace)+len(r.Key))
	text = append(append(text, `{"namespace":"`...), r.Namespace...)
	text = jsonline.Text(append(text, `","key":`...), r.Key)
	text = append(append(text, `,"type":"`...), kind.String()...)
	return append(append(text, `","version":`...), version...)
}

// lapse makes a key whose time to live is over one that is not there, with an event and a version of its own.
func (t *turn) lapse(r *row) error {
	if !r.lapsed(t.tx.Now()) {
		return nil
	}
	x := turn{Keys: t.Keys, tx: t.tx, author: Author{Session: r.scope, Name: identity.System}}
	version := strconv.FormatInt(r.version+1, 10)
	e := x.entry(expired)
	e.Summary = "the time of " + r.String() + " is over, version " + version
	e.Related = []string{r.String()}
	e.Details = string(appendDetails(r, r.kind, version)) + "}"
	revision, err := t.log.Append(t.tx, e)
	if err != nil {
		return err
	}
	r.bury()
	x.put(r, revision, revision, "", 0)
	return nil
}
