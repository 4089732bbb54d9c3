package catalog

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
)

// typesOf returns the registered types of a session after a name, sorted by name.
func typesOf(q store.Querier, session int64, after string, limit int) (types []*msgtype.Type, err error) {
	rows := q.Query(selectTypes, session, after, limit)
	defer rows.Close()
	for rows.Next() {
		t := &msgtype.Type{Family: msgtype.SessionFamily}
		var aliases string
		err := rows.Scan(&t.Name, &aliases, &t.Title, &t.Sender, &t.Recipient, &t.Example, &t.Schema,
			&t.RegisteredBy, &t.RegisteredAt, &t.Revision, &t.Version)
		if err == nil {
			err = json.Unmarshal([]byte(aliases), &t.Aliases)
		}
		if err != nil {
			return nil, err
		}
		types = append(types, t)
	}
	return types, rows.Err()
}

// registered are the names that a session has registered.
type registered struct {
	types  map[string]bool
	owners map[string]string // the type that has a name or an alias
}

func namesOf(q store.Querier, session int64) (registered, error) {
	known := registered{map[string]bool{}, map[string]string{}}
	rows := q.Query(selectNames, session)
	defer rows.Close()
	for rows.Next() {
		var name, text string
		if err := rows.Scan(&name, &text); err != nil {
			return known, err
		}
		var aliases []string
		if err := json.Unmarshal([]byte(text), &aliases); err != nil {
			return known, err
		}
		known.types[name], known.owners[name] = true, name
		for _, alias := range aliases {
			known.owners[alias] = name
		}
	}
	return known, rows.Err()
}

// free refuses a definition whose name or alias has another meaning already.
func free(d Definition, others registered) error {
	for _, name := range append([]string{d.Name}, d.Aliases...) {
		if t := msgtype.BuiltIn(name); t != nil && t.Name != d.Name {
			return taken(name, "the built-in type "+t.Name)
		}
		if owner := others.owners[name]; owner != "" && owner != d.Name {
			return taken(name, "the registered type "+owner)
		}
	}
	return nil
}

func taken(name, owner string) error {
	e := fault.New(fault.Exists, "TYPE_TAKEN", "the name %s belongs to %s: choose another one", name, owner)
	e.Resource, e.Name = "type", name
	return e
}

func notADirector(s directory.Session, agent directory.Agent) error {
	who := "operators"
	if directors := s.Settings.GetDirectors().GetNames(); len(directors) > 0 {
		who += " and agents with the role " + strings.Join(directors, " or ")
	}
	return fault.New(fault.Denied, "NOT_A_DIRECTOR",
		"only %s may register types in session %q (setting directors); agent %q has the role %q", who, s.Name, agent.Name, agent.Role)
}

// A record is a registered type as an export has it.
type record struct {
	Name         string          `json:"name"`
	Aliases      []string        `json:"aliases"`
	Title        string          `json:"title"`
	Sender       string          `json:"sender"`
	Recipient    string          `json:"recipient"`
	Example      json.RawMessage `json:"example"`
	Schema       json.RawMessage `json:"schema"`
	RegisteredBy string          `json:"registered_by"`
	RegisteredAt time.Time       `json:"registered_at"`
	Revision     int64           `json:"revision"`
	Version      int64           `json:"version"`
}

// Records returns the registered types of a session after a name, each as one line of JSON, and the
// name of the last one.
func (c *Catalog) Records(
	q store.Querier, session int64, after string, limit int,
) (lines [][]byte, last string, err error) {
	types, err := typesOf(q, session, after, limit)
	if err != nil {
		return nil, "", err
	}
	for _, t := range types {
		line, err := json.Marshal(record{
			Name: t.Name, Aliases: t.Aliases, Title: t.Title, Sender: t.Sender, Recipient: t.Recipient,
			Example: orNull(t.Example), Schema: orNull(t.Schema),
			RegisteredBy: t.RegisteredBy, RegisteredAt: t.RegisteredAt, Revision: t.Revision, Version: t.Version,
		})
		if err != nil {
			return nil, "", err
		}
		lines, last = append(lines, line), t.Name
	}
	return lines, last, nil
}

// Erase removes up to limit registered types of a session that is being deleted, and reports
// whether there may be more.
func (c *Catalog) Erase(tx *store.Tx, session int64, limit int) (more bool, err error) {
	c.drop(tx)
	left, err := tx.ExecPage(limit, []string{deleteSomeTypes}, session)
	if err != nil {
		return false, fmt.Errorf("remove message types: %w", err)
	}
	return left == 0, nil
}

// orNull returns JSON text, and null for none.
func orNull(text string) json.RawMessage {
	if text == "" {
		return json.RawMessage("null")
	}
	return json.RawMessage(text)
}
