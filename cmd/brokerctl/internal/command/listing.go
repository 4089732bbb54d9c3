package command

import (
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/output"
)

// A Listing is a command that lists all pages of one kind of item.
type Listing[Q, A, I proto.Message] struct {
	Page
	Call    Call[Q, A] // nil: Plain
	Items   func(A) []I
	Args    []Arg
	Options []Option
	Apart   [][]string
	FlagsOf string
	Newest  bool // the newest items come first, and no option changes that

	Prepare func(g *Given, q Q) error
	Instead func(g *Given, broker *client.Client, q Q) (done bool, err error) // nil, or may show something else than items
	View    func(g *Given) output.View[I]
	Show    func(g *Given, items []I) error // nil: as View says
}

// Command makes the command of one run.
func (l Listing[Q, A, I]) Command(c *Caller) *cobra.Command {
	return Procedure[Q]{
		Page: l.Page, Args: l.Args, Options: append(slices.Clip(l.Options), Limit), Apart: l.Apart,
		FlagsOf: l.FlagsOf, Says: true, Run: l.run, check: l.Call.check,
	}.Command(c)
}

func (l Listing[Q, A, I]) run(g *Given, q Q) error {
	if l.Prepare != nil {
		if err := l.Prepare(g, q); err != nil {
			return err
		}
	}
	broker, err := g.Connect(g.Cmd.Context())
	if err != nil {
		return err
	}
	if l.Instead != nil {
		if done, err := l.Instead(g, broker, q); done || err != nil {
			return err
		}
	}
	items, err := UpToLimit(g, l.Newest || newestFirst(q.ProtoReflect()), l.pages(g, broker, q))
	switch {
	case err != nil:
		return err
	case l.Show != nil:
		return l.Show(g, items)
	}
	return output.List(&g.Output, g.Cmd, items, l.View(g))
}

// newestFirst reports whether the options of a list ask for the newest items first.
func newestFirst(request protoreflect.Message) bool {
	fields := request.Descriptor().Fields()
	if f := fields.ByName("newest_first"); f != nil {
		return request.Get(f).Bool()
	}
	f := fields.ByName("oldest_first")
	return f != nil && !request.Get(f).Bool()
}

// All reads all items.
func (l Listing[Q, A, I]) All(g *Given, broker *client.Client, q Q) ([]I, error) {
	return Pages(0, l.pages(g, broker, q))
}

func (l Listing[Q, A, I]) pages(g *Given, broker *client.Client, q Q) PageOf[I] {
	size, token := newTarget(q.ProtoReflect(), "page_size", ""), newTarget(q.ProtoReflect(), "page_token", "")
	return func(n int32, next string) ([]I, string, error) {
		size.Set(protoreflect.ValueOfInt32(n))
		token.Set(protoreflect.ValueOfString(next))
		a, err := l.Call.make(g, broker, q)
		if err != nil {
			return nil, "", err
		}
		return l.Items(a), newTarget(a.ProtoReflect(), output.PageToken, "").get().String(), nil
	}
}
