package msgtype_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/msgtype"
)

// update is how `make generate` makes the page.
var update = flag.Bool("update", false, "write docs/message-types.md instead of comparing it")

const (
	pageFile = "../../docs/message-types.md"
	// generated ends the part of the page that people write.
	generated = "<!-- What follows is generated from internal/msgtype by `make generate`. -->\n"
)

func TestPage_ListsEveryType(t *testing.T) {
	text, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	written, old, found := strings.Cut(string(text), generated)
	if !found {
		t.Fatalf("%s lacks the line %q", pageFile, generated)
	}
	page := page(t)
	if *update {
		if err := os.WriteFile(pageFile, []byte(written+generated+page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(old, page); diff != "" {
		t.Errorf("%s is out of date: run make generate\n%s", pageFile, diff)
	}
}

// page returns the built-in types as Markdown.
func page(t *testing.T) string {
	var b strings.Builder
	for _, family := range msgtype.Families() {
		fmt.Fprintf(&b, "\n## %s\n\n%s", family.Title, wrapped("Family `"+family.Name+"`. "+family.Text))
		for _, kind := range family.Types {
			text := fmt.Sprintf("%s From %s, to %s.", kind.Title, kind.Sender, kind.Recipient)
			if kind.Directive {
				text += " A directive."
			}
			if len(kind.Aliases) > 0 {
				text += fmt.Sprintf(" Aliases: `%s`.", strings.Join(kind.Aliases, "`, `"))
			}
			fmt.Fprintf(&b, "\n### %s\n\n%s", kind.Name, wrapped(text))
			if kind.Example != "" {
				fmt.Fprintf(&b, "\n```json\n%s\n```\n", indented(t, kind.Example))
			}
			if kind.Schema != "" {
				fmt.Fprintf(&b, "\n%s", wrapped(fields(t, kind.Schema)))
			}
		}
	}
	return b.String()
}

// wrapped breaks a paragraph into lines of at most 100 bytes.
func wrapped(text string) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case column == 0:
		case column+1+len(word) > 100:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String() + "\n"
}

func indented(t *testing.T, text string) string {
	t.Helper()
	if len(text) <= 100 {
		return text
	}
	var b bytes.Buffer
	if err := json.Indent(&b, []byte(text), "", "  "); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// fields lists what the schema of a payload says of its fields.
func fields(t *testing.T, schema string) string {
	t.Helper()
	var s struct {
		Required   []string
		Properties json.RawMessage
	}
	if err := json.Unmarshal([]byte(schema), &s); err != nil {
		t.Fatal(err)
	}
	required := map[string]bool{}
	for _, name := range s.Required {
		required[name] = true
	}
	var list []string
	properties := json.NewDecoder(bytes.NewReader(s.Properties))
	if _, err := properties.Token(); err != nil {
		t.Fatal(err)
	}
	for properties.More() {
		name, err := properties.Token()
		if err != nil {
			t.Fatal(err)
		}
		var property struct{ Type any }
		if err := properties.Decode(&property); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("`%s` (%s", name, kinds(property.Type))
		if required[name.(string)] {
			text += ", required"
		}
		list = append(list, text+")")
	}
	return "Checked fields: " + strings.Join(list, ", ") + "."
}

func kinds(t any) string {
	if list, ok := t.([]any); ok {
		names := make([]string, len(list))
		for i, name := range list {
			names[i] = fmt.Sprint(name)
		}
		return strings.Join(names, " or ")
	}
	return fmt.Sprint(t)
}
