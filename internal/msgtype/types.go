package msgtype

import (
	"cmp"
	"embed"
	"fmt"
	"path"
	"runtime"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// A Type is the definition of a type. It does not change; its methods may be called concurrently.
type Type struct {
	Name      string
	Aliases   []string // in snake_case, sorted
	Family    string
	Title     string
	Sender    string
	Recipient string
	Example   string // payload as JSON; empty = none
	Schema    string // as JSON; empty = every payload fits
	Broken    Broken // for tests of built-in types
	Directive bool

	// Only of a session's types:
	RegisteredBy string
	RegisteredAt time.Time
	Revision     int64
	Version      int64 // counts the registrations of the name from 1

	once     sync.Once // compiles the schema at its first use
	compiled *Schema
	failure  error
}

// A Broken is a payload that does not fit, with the place of its fault.
type Broken struct {
	Payload string // JSON; empty = none
	At      string // JSON pointer
}

// SessionFamily is the family of the types that sessions register.
const SessionFamily = "session"

// Validate returns the faults of a payload, which is valid JSON. There are none if it fits. The error
// says why the schema cannot be applied: an older broker may have stored one that CompileSchema
// refuses.
func (t *Type) Validate(payload string) ([]Fault, error) {
	if t.Schema == "" {
		return nil, nil
	}
	t.once.Do(func() { t.compiled, t.failure = CompileSchema(t.Schema) })
	if t.failure != nil {
		return nil, t.failure
	}
	return t.compiled.Validate(payload), nil
}

// A Family is a group of related types, as one file defines it.
type Family struct {
	Name  string
	Title string
	Text  string // one paragraph
	Types []*Type
}

//go:embed families/*.yaml
var files embed.FS

// order is the order of the families in the documentation.
var order = []string{
	"task", "review", "plan", "control", "conversation", "context", "handoff", "blocker", "vote", "resource",
	"announcement", "broker",
}

// A catalog is all built-in types.
type catalog struct {
	families []Family
	names    map[string]*Type // by name and by alias
	large    chan struct{}    // has a place for each validation of a large payload that may run
}

// builtin returns the built-in types. It reads the files once for all daemons of a process: they are
// part of the program.
var builtin = sync.OnceValue(func() *catalog {
	c := &catalog{names: map[string]*Type{}, large: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	for _, name := range order {
		family, err := readFamily(name)
		if err != nil {
			panic(fmt.Sprintf("message types: %v", err)) // tests read every file
		}
		c.families = append(c.families, family)
		for _, t := range family.Types {
			for _, n := range append([]string{t.Name}, t.Aliases...) {
				if c.names[n] != nil {
					panic("message types: " + n + " has two meanings")
				}
				c.names[n] = t
			}
		}
	}
	return c
})

// Families returns the built-in types by family.
func Families() []Family { return builtin().families }

// BuiltIn returns the built-in type with a name or alias in snake_case, or nil.
func BuiltIn(name string) *Type { return builtin().names[name] }

func readFamily(name string) (Family, error) {
	var file struct {
		Title string
		Text  string
		Types []struct {
			Name      string
			Aliases   []string
			Title     string
			Sender    string
			Recipient string
			Directive bool
			Example   yaml.Node
			Schema    yaml.Node
			Broken    struct {
				Payload yaml.Node
				At      string
			}
		}
	}
	text, err := files.ReadFile(path.Join("families", name+".yaml"))
	if err != nil {
		return Family{}, err
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return Family{}, fmt.Errorf("%s: %w", name, err)
	}
	family := Family{Name: name, Title: file.Title, Text: file.Text}
	for _, in := range file.Types {
		t := &Type{
			Name: in.Name, Aliases: in.Aliases, Family: name, Title: in.Title, Sender: in.Sender, Recipient: in.Recipient,
			Directive: in.Directive, Broken: Broken{At: in.Broken.At},
		}
		for node, to := range map[*yaml.Node]*string{
			&in.Example: &t.Example, &in.Schema: &t.Schema, &in.Broken.Payload: &t.Broken.Payload,
		} {
			if *to, err = jsonOf(node); err != nil {
				return Family{}, fmt.Errorf("%s: %s: %w", name, in.Name, err)
			}
		}
		family.Types = append(family.Types, t)
	}
	return family, nil
}

func compare(a, b string) int { return cmp.Compare(a, b) }
