package rules_test

import (
	"flag"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/internal/rules"
)

// update is how `make generate` makes the page.
var update = flag.Bool("update", false, "write docs/limits.md instead of comparing it")

const (
	pageFile = "../../docs/limits.md"
	// generated ends the part of the page that people write.
	generated = "<!-- What follows is generated from the .proto files by `make generate`. -->\n"
)

func TestPage_ListsTheBoundsOfFields(t *testing.T) {
	text, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	written, old, found := strings.Cut(string(text), generated)
	if !found {
		t.Fatalf("%s lacks the line %q", pageFile, generated)
	}
	page := page()
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

// A row has messages in which the same fields have the same bound.
type row struct{ messages, fields, bound string }

// page returns the bounds of the fields of all requests as Markdown, with a table for each .proto file.
func page() string {
	var files []string
	services, rows := map[string][]string{}, map[string][]row{}
	seen := map[protoreflect.FullName]bool{}
	var walk func(protoreflect.MessageDescriptor)
	walk = func(d protoreflect.MessageDescriptor) {
		if seen[d.FullName()] || d.ParentFile().Package() != "brokerd.v1" {
			return
		}
		seen[d.FullName()] = true
		file := d.ParentFile().Path()
		rows[file] = append(rows[file], rowsOf(d)...)
		for i := range d.Fields().Len() {
			if inner := d.Fields().Get(i).Message(); inner != nil {
				walk(inner)
			}
		}
	}
	for _, m := range methods() {
		file, service := m.ParentFile().Path(), "`"+string(m.Parent().Name())+"`"
		if !slices.Contains(files, file) {
			files = append(files, file)
		}
		if !slices.Contains(services[file], service) {
			services[file] = append(services[file], service)
		}
		walk(m.Input())
	}
	slices.Sort(files)
	var b strings.Builder
	for _, file := range files {
		if all := merged(rows[file]); len(all) > 0 {
			fmt.Fprintf(&b, "\n### %s\n\n| message | fields | limit |\n|---|---|---|\n", strings.Join(services[file], ", "))
			for _, r := range all {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", r.messages, r.fields, r.bound)
			}
		}
	}
	return b.String()
}

// rowsOf returns the rows of a message, in the order of its fields.
func rowsOf(d protoreflect.MessageDescriptor) (all []row) {
	message := "`" + strings.TrimSuffix(string(d.Name()), "Request") + "`"
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		bound, field := boundOf(f), "`"+string(f.Name())+"`"
		if bound == "" {
			continue
		}
		if i := slices.IndexFunc(all, func(r row) bool { return r.bound == bound }); i >= 0 {
			all[i].fields += ", " + field
		} else {
			all = append(all, row{message, field, bound})
		}
	}
	return all
}

// merged returns the rows with one for each set of fields and bound.
func merged(all []row) (out []row) {
	for _, r := range all {
		if i := slices.IndexFunc(out, func(o row) bool { return o.fields == r.fields && o.bound == r.bound }); i >= 0 {
			out[i].messages += ", " + r.messages
		} else {
			out = append(out, r)
		}
	}
	return out
}

// boundOf returns the bound of a field in words; empty for the bounds that the page states once for all fields.
func boundOf(f protoreflect.FieldDescriptor) string {
	value, most := boundOfValue(f), int64(rules.Of(f).GetMaxItems())
	switch {
	case most == 0:
		return value
	case value == "":
		return count(most) + " items"
	}
	return count(most) + " items; each " + value
}

func boundOfValue(f protoreflect.FieldDescriptor) string {
	rule := rules.Of(f)
	unit := count
	if strings.HasSuffix(string(f.Name()), "_bytes") {
		unit = size
	}
	id := f.Name() == "id" || strings.HasSuffix(string(f.Name()), "_id")
	switch {
	case rule.GetLine() == 128 && id:
		return ""
	case rule.GetLine() > 0:
		return size(int64(rule.GetLine())) + ", one line"
	case rule.GetText() > 0:
		return size(int64(rule.GetText()))
	case rule.GetJson() > 0:
		return size(int64(rule.GetJson())) + " of JSON"
	case rule.GetLongest() != "":
		longest := rules.Duration(f, rule.GetLongest())
		switch {
		case rule.GetOrZero():
			return "0, or " + span(rules.Duration(f, rule.GetShortest())) + " to " + span(longest)
		case rule.GetShortest() != "":
			return span(rules.Duration(f, rule.GetShortest())) + " to " + span(longest)
		}
		return span(longest)
	case rule != nil && rule.Max != nil:
		return unit(rule.GetMin()) + " to " + unit(rule.GetMax())
	}
	return ""
}

// count writes a number with commas, and a large power of two as such.
func count(n int64) string {
	if n > 1<<31 && bits.OnesCount64(uint64(n)) == 1 {
		return fmt.Sprintf("2^%d", bits.TrailingZeros64(uint64(n)))
	}
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// size writes a number of bytes.
func size(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 4<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	case n == 1:
		return "1 byte"
	}
	return count(n) + " bytes"
}

// span writes a duration in its largest unit.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d > day && d%day == 0:
		return count(int64(d/day)) + " days"
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d >= time.Second && d%time.Second == 0:
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d ms", d/time.Millisecond)
}
