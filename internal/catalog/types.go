package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/jsonform"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// typesOf returns the registered types of a session after a name, sorted by name.
func typesOf(q store.Querier, session int64, after string, limit int) ([]*msgtype.Type, error) {
	return store.Collect(q.Query(selectTypes, session, after, limit), func(r *store.Rows) (*msgtype.Type, error) {
		t := &msgtype.Type{Family: msgtype.SessionFamily}
		var aliases string
		err := r.Scan(&t.Name, &aliases, &t.Title, &t.Sender, &t.Recipient, &t.Example, &t.Schema,
			&t.RegisteredBy, &t.RegisteredAt, &t.Revision, &t.Version)
		if err == nil {
			err = json.Unmarshal([]byte(aliases), &t.Aliases)
		}
		return t, err
	})
}

// ownNames are the names that a session has registered.
type ownNames struct {
	types  map[string]bool
	owners map[string]string // the type that has a name or an alias
}

func namesOf(q store.Querier, session int64) (ownNames, error) {
	known := ownNames{map[string]bool{}, map[string]string{}}
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
func free(d *pb.MessageType, others ownNames) error {
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
		"only %s may register types in session %q (setting directors); agent %q has the role %q",
		who, s.Name, agent.Name, agent.Role)
}

// Records returns the registered types of a session after a name, each as one line with the JSON of the API, and
// the name of the last one. A type that replaces a built-in one is as the session has registered it.
func (s *Service) Records(
	q store.Querier, session int64, after string, limit int,
) (lines [][]byte, last string, err error) {
	types, err := typesOf(q, session, after, limit)
	if err != nil {
		return nil, "", err
	}
	for _, t := range types {
		var line bytes.Buffer
		if err := jsonform.Append(&line, typeProto(t)); err != nil {
			return nil, "", err
		}
		lines, last = append(lines, line.Bytes()), t.Name
	}
	return lines, last, nil
}

// Erase removes up to limit registered types of a session that is being deleted, and reports
// whether there may be more.
func (s *Service) Erase(tx *store.Tx, session int64, limit int) (more bool, err error) {
	s.drop(tx)
	left, err := tx.ExecPage(limit, []string{deleteSomeTypes}, session)
	if err != nil {
		return false, fmt.Errorf("remove message types: %w", err)
	}
	return left == 0, nil
}

// Data is what the keeper exports and removes of a session.
func (s *Service) Data() work.Data {
	return work.Data{File: "types.jsonl", Lines: s.Records, Erase: s.Erase}
}
