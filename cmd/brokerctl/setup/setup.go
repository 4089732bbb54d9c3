// Package setup adds what the broker needs to the configuration files of coding agents, and removes
// it again.
//
// Its functions take the content of a file and return the new one; they read and write no file. They
// insert text and move none, so comments, order and formatting stay. What add inserts into a file,
// remove finds by its form and its value, without a record: the file that remove returns has the bytes
// that it had before add, and keeps what a user changed elsewhere in between. An addition with other
// Options, or of an earlier version, is found in the same way, and add replaces it.
package setup

import (
	"fmt"
	"slices"
	"strings"

	"brokerd/cmd/brokerctl/internal/each"
)

// Content is the content of a file, or its absence.
type Content struct {
	Text   string
	Exists bool
}

// Options are what differs between the additions of two calls for a vendor.
type Options struct {
	Agent      string // the name that the MCP server and the hooks have; "" = they find it when they start
	Unattended bool   // the hook at the end of a turn waits for messages
	Wake       bool   // hooks wait in the background and wake the agent, if its program can do that
}

// A Vendor is a kind of coding agent.
type Vendor struct {
	Name     string   // the argument of brokerctl setup
	Title    string   // the product
	Programs []string // its commands
	Tested   string   // the version that accepted these files
	Once     string   // the command that runs the prompt that follows it, and ends
	Hook     string   // the hook at the end of a turn, which wakes the agent
	Next     string   // what the user does after setup
	Wakes    string   // the version from which on Options.Wake works; "" = it never does
	Woken    bool     // its hooks wake it
	Idle     string   // when mail wakes the tested version; "" = never
	Patient  bool     // its hooks wait for messages also without Options.Unattended
	Agent    string   // the name that its MCP server and its hooks have; "" = they find it when they start
	Files    []File
}

// A File is a file that a vendor reads, and what setup adds to it. It has one of the five kinds of
// additions.
type File struct {
	Path  string   // below the folder of the project
	User  string   // below the home folder, for all projects; "" if the vendor has none
	Other []string // names in place of Path's or User's last part; setup prefers one that exists
	What  string   // the purpose, in a few words

	entries []entry                // of a JSON file
	table   *tomlTable             // of a TOML file
	section string                 // of a Markdown file
	ignored string                 // a line of a .gitignore
	whole   string                 // the complete content of a file that belongs to setup
	earlier func(text string) bool // whether whole had this content with other options, or in an earlier version; or nil
}

// Ignore returns the .gitignore with the name of a file that git ignores.
func Ignore(name string) File { return File{Path: ".gitignore", What: name, ignored: name} }

// Shared reports whether the file has the same addition for each vendor that reads it.
func (f File) Shared() bool { return f.section != "" }

// Add returns the content with the additions that it does not have yet. conflicts lists values that
// the user set differently; they stay. The error, for a text that is not in its format, names the
// line.
func (f File) Add(c Content) (_ Content, conflicts []string, err error) {
	var conflict string
	added := Content{Exists: true}
	switch {
	case f.entries != nil:
		added.Text, conflicts, err = addJSON(c.Text, c.Exists, f.entries)
	case f.table != nil:
		added.Text, conflict, err = f.table.add(c.Text, c.Exists)
	case f.section != "":
		added.Text, conflict, err = markdownMarker.add(c.Text, c.Exists, f.section)
	case f.ignored != "":
		added.Text, conflict, err = hashMarker.add(c.Text, c.Exists, f.ignored+"\n")
	case c.Exists && !f.wrote(c.Text):
		conflict = "the file has another content"
	default:
		added.Text = f.whole
	}
	if conflict != "" {
		conflicts = append(conflicts, conflict)
	}
	if err != nil || len(conflicts) > 0 && added.Text == "" {
		return c, conflicts, err
	}
	return added, conflicts, nil
}

// Remove returns the content without the additions. kept lists additions with a value that setup does
// not give; they stay. A file that setup created and that has no other content does not exist
// afterwards.
func (f File) Remove(c Content) (_ Content, kept []string, err error) {
	if !c.Exists {
		return c, nil, nil
	}
	left, deleted := Content{Text: c.Text}, false
	switch {
	case f.entries != nil:
		left.Text, kept, deleted, err = removeJSON(c.Text, f.entries)
	case f.table != nil, f.ignored != "":
		left.Text, deleted, err = hashMarker.remove(c.Text)
	case f.section != "":
		left.Text, deleted, err = markdownMarker.remove(c.Text)
	case f.wrote(c.Text):
		deleted = true
	default:
		kept = []string{"the file has another content"}
	}
	if err != nil {
		return c, nil, err
	}
	if deleted {
		return Content{}, kept, nil
	}
	left.Exists = true
	return left, kept, nil
}

// wrote reports whether setup has written this complete content of a file.
func (f File) wrote(text string) bool { return text == f.whole || f.earlier != nil && f.earlier(text) }

// Agent returns the name that a file gives its MCP server, or "".
func (f File) Agent(c Content) string {
	for _, e := range f.entries {
		root, blank, err := parseJSON(c.Text)
		if blank || err != nil || e.append {
			continue
		}
		if chain, _, _ := find(&root, e); chain != nil {
			at := chain[len(chain)-1]
			return agentOf(standard(at.container.items[at.index].value))
		}
	}
	if f.table == nil {
		return ""
	}
	content, err := parseTOML(c.Text)
	if err != nil {
		return ""
	}
	value, _ := lookup(content, f.table.path)
	return agentOf(value)
}

// Find returns the vendor with the name.
func Find(name string, o Options) (Vendor, error) {
	all := Vendors(o)
	i := slices.IndexFunc(all, func(v Vendor) bool { return v.Name == name })
	if i < 0 {
		names := each.Of(all, func(v Vendor) string { return v.Name })
		return Vendor{}, fmt.Errorf("no coding agent %q; setup knows %s", name, strings.Join(names, ", "))
	}
	all[i].Agent, all[i].Woken = o.Agent, o.Wake && all[i].Wakes != ""
	return all[i], nil
}
