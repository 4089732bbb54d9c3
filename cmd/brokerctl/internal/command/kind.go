package command

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/cmd/brokerctl/internal/problem"
)

// A Kind says what the text of an option or an argument means beyond the type of its field: its name in help, the words
// that complete it, and how it is read. The zero Kind is the type of the field alone.
type Kind struct {
	Name     string                     // such as AGENT; "": as the type says, such as DURATION, N or TEXT
	Words    WordList                   // of the broker, that complete it
	Find     Finder                     // in place of Words, if they depend on the command line
	Fixed    []string                   // words that complete it
	Files    bool                       // names of files complete it
	Complete cobra.ShellCompDirective   // how the shell completes it without words; 0: not at all
	Read     Reader                     // nil: as the type says
	Write    func(proto.Message) string // of the field of a message: the text that Read reads
	Source   bool                       // a text may be the name of its source: @FILE or -
}

// Kinds of values that no list of the broker completes.
var (
	Content  = Kind{Read: readContent, Source: true}
	JSON     = Kind{Name: "JSON", Read: readJSON, Source: true}
	Joined   = Kind{Read: readJoined} // of the last argument, which may be repeated: one text of several words
	Priority = Kind{Name: "PRIORITY", Fixed: []string{"low", "normal", "high", "critical"}, Read: readPriority}
	Name     = Kind{Name: "NAME"}
	Revision = Kind{Name: "REVISION"}
	Folder   = Kind{Name: "FOLDER", Complete: cobra.ShellCompDirectiveFilterDirs}
	Ago      = Kind{Name: "TIME", Fixed: []string{"10m", "1h", "1d"}, Read: timeAt(-1)} // a duration lies back
	Ahead    = Kind{Name: "TIME", Read: timeAt(+1)}                                     // a duration lies ahead
)

// Options that commands share.
var (
	RequestID = Option{Field: "request_id", Kind: Kind{Name: "UUID"}, Usage: "makes retries idempotent for 1h"}
	Oldest    = Option{Field: "oldest_first", Name: "oldest", Usage: "oldest first"}
	Limit     = Option{Name: "limit", Type: "int", Value: "1000", Usage: "list at most this many; 0: all"}
)

// ContentOptions are the options for the content of a message or decision, which has that field of the request.
func ContentOptions(field string, payload Kind) []Option {
	place := Kind{Name: "PATH[:LINE]", Files: true, Read: As(ParseFile)}
	return []Option{
		{Field: field + ".body", Kind: Content, Usage: "the text; @FILE reads a file, - standard input"},
		{Field: field + ".payload", Kind: payload, Usage: "any JSON; @FILE reads a file, - standard input"},
		{Field: field + ".files", Name: "file", Kind: place, Usage: "a file it is about; repeatable"},
		{Field: field + ".artifacts", Name: "artifact", Kind: Name,
			Usage: "an artifact it is about; repeatable"},
	}
}

// OneSource refuses to read both parts of a content from standard input.
func (g *Given) OneSource() error {
	if g.Text("body") == "-" && g.Text("payload") == "-" {
		return problem.Usagef("--body and --payload cannot both be standard input")
	}
	return nil
}

// Since is the option of a list for its earliest time. what says what happened then, such as "messages sent".
func Since(field, value, what string) Option {
	usage := "only " + what + " since this time: 2h or 1d (ago), or RFC 3339"
	return Option{Field: field, Name: "since", Value: value, Kind: Ago, Usage: usage}
}

// Until is the option of a list for its latest time.
func Until(field, what string) Option {
	kind := Kind{Name: "TIME", Read: Ago.Read}
	return Option{Field: field, Name: "until", Kind: kind, Usage: "only " + what + " before this time"}
}

// A Finder returns the words that complete what has begun.
type Finder func(g *Given, begun string) WordList

// A Reader sets a field from the texts of the command line.
type Reader func(g *Given, to Target, texts []string) error

// readContent reads a text that may name a file or standard input.
func readContent(g *Given, to Target, texts []string) error {
	s, err := g.Caller.Text(g.Cmd, to.Flag, texts[len(texts)-1])
	to.Set(protoreflect.ValueOfString(s))
	return err
}

// readJSON reads JSON that may be in a file or come from standard input.
func readJSON(g *Given, to Target, texts []string) error {
	s, err := g.JSONInput(g.Cmd, to.Flag, texts[len(texts)-1])
	to.Set(protoreflect.ValueOfString(s))
	return err
}

// readJoined makes one text of several words.
func readJoined(_ *Given, to Target, texts []string) error {
	to.Set(protoreflect.ValueOfString(strings.Join(texts, " ")))
	return nil
}

// readPriority reads a number or a name.
func readPriority(_ *Given, to Target, texts []string) error {
	n, err := ParsePriority(to.Flag, texts[len(texts)-1])
	to.Set(protoreflect.ValueOfInt32(n))
	return err
}

// timeAt reads a time; forward is the direction of a duration: -1 for the past, 1 for the future.
func timeAt(forward time.Duration) Reader {
	return func(g *Given, to Target, texts []string) error {
		t, err := g.ParseTime(to.Flag, texts[len(texts)-1], forward)
		if t != nil {
			to.Set(protoreflect.ValueOfMessage(t.ProtoReflect()))
		}
		return err
	}
}

// As returns a reader for a message that a text names in a grammar. The error of the grammar names the flag or
// argument.
func As[M proto.Message](parse func(string) (M, error)) Reader {
	return func(_ *Given, to Target, texts []string) error {
		if !to.field.IsList() {
			texts = texts[len(texts)-1:]
		}
		for _, s := range texts {
			m, err := parse(s)
			if err != nil {
				return AsUsage(err)
			}
			if m.ProtoReflect().IsValid() {
				to.Set(protoreflect.ValueOfMessage(m.ProtoReflect()))
			}
		}
		return nil
	}
}

// nameOf returns what help calls the value of a field.
func (k Kind) nameOf(field protoreflect.FieldDescriptor, flag string) string {
	switch {
	case k.Name != "":
		return k.Name
	case field.Enum() != nil:
		return strings.ToUpper(flag)
	case field.IsMap():
		return "KEY=VALUE"
	}
	return ""
}
