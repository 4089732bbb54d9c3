package command

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/prompt"
)

// A Page is what the help of a command says beside its arguments and options. The words of Use are the rule for the
// arguments: ID must be given, [REASON] may be, PATH... are one or more.
type Page struct{ Use, Short, Long, Example string }

// An Arg is an argument of a command.
type Arg struct {
	Field string // of the request; "": the code of the command reads it
	Name  string // in errors, such as "the id"
	Text  bool   // it may be empty; an empty name or id comes from an unset variable of a shell
	Kind  Kind
	After func(before []string) Kind // nil, or the kind for the arguments before it

	Fields []string // of the request, which the code of the command reads it into, in place of Field
	Caller bool     // it names the agent that makes the call

	Missing func(g *Given) (string, error) // nil, or what stands for the argument if it is not given
}

// A Call makes one call of the API, or what a command does in its place, such as reading all pages into one answer.
type Call[Q, A proto.Message] func(g *Given, broker *client.Client, request Q) (A, error)

// Plain makes the call of the method that takes the request.
func Plain[Q, A proto.Message](g *Given, broker *client.Client, q Q) (a A, err error) {
	answer := newMessage[A]()
	if err := broker.Conn().Invoke(g.Cmd.Context(), pathOf[Q, A](), q, answer); err != nil {
		return a, err
	}
	return answer, nil
}

// pathOf returns the full name of the method with a request and an answer. No two take the same request, and a method
// is in the file of its request. A pair that no method has is a defect of the command.
func pathOf[Q, A proto.Message]() string {
	asked, answer := newMessage[Q]().ProtoReflect().Descriptor(), newMessage[A]().ProtoReflect().Descriptor()
	services := asked.ParentFile().Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			if m := methods.Get(j); m.Input() == asked && m.Output() == answer {
				return fmt.Sprintf("/%s/%s", services.Get(i).FullName(), m.Name())
			}
		}
	}
	panic(fmt.Sprintf("build command tree: no method takes %s and answers %s", asked.FullName(), answer.FullName()))
}

// Awaiting is a plain call that itself waits as long as --wait says; what names the thing that it waits for.
func Awaiting[Q, A proto.Message](what string) Call[Q, A] {
	return func(g *Given, broker *client.Client, q Q) (A, error) {
		defer g.Progress(g.Duration("wait"), what)()
		return Plain[Q, A](g, broker, q)
	}
}

// check panics if the command makes a call that no method has.
func (call Call[Q, A]) check() {
	if call == nil {
		_ = pathOf[Q, A]()
	}
}

func (call Call[Q, A]) make(g *Given, broker *client.Client, q Q) (A, error) {
	if call == nil {
		return Plain[Q, A](g, broker, q)
	}
	return call(g, broker, q)
}

// A Spec is a command that makes one call and shows the answer. The types of options and arguments, their presence and
// the names of enums come from the descriptor of the request.
type Spec[Q, A proto.Message] struct {
	Page
	Call    Call[Q, A] // nil: Plain
	Args    []Arg
	Options []Option
	Apart   [][]string // options that exclude each other
	OneOf   []string   // options of which at least one must be given
	FlagsOf string     // the command whose page describes the options; "": its own
	Old     string     // the option that earlier versions took as an argument behind the others; still read

	Prepare func(g *Given, q Q) error              // sets what no argument and no option sets
	Connect func(g *Given) (*client.Client, error) // nil: as the settings say
	Sets    map[string]string                      // the fields that Prepare always sets, and to what
	Narrow  bool                                   // it only makes some calls of the method

	// After is what follows the call.
	After func(g *Given, broker *client.Client, q Q, a A) (done bool, err error)

	Shown string                                // the field of the answer that -o json prints; "": all
	Text  func(g *Given, w io.Writer, q Q, a A) // the answer for people and models
	Wait  *Waiting[A]                           // how --wait waits for an outcome
}

// A Waiting says how a command waits until what it shows has an outcome. The request has a field wait.
type Waiting[A proto.Message] struct {
	Usage   string // of --wait
	What    string // such as "the outcome of"; the name of the thing follows
	Reached func(a A) bool
	Verdict func(a A, reached bool, wait time.Duration) error // the exit code
}

// Command makes the command of one run.
func (s Spec[Q, A]) Command(c *Caller) *cobra.Command {
	options := s.Options
	if s.Wait != nil {
		wait := Option{Name: "wait", Type: "duration", Says: "wait", Usage: s.Wait.Usage}
		options = append(slices.Clip(options), wait)
	}
	return Procedure[Q]{
		Page: s.Page, Args: s.Args, Options: options, Apart: s.Apart, OneOf: s.OneOf, FlagsOf: s.FlagsOf,
		Sets: s.Sets, Says: !s.Narrow, Old: s.Old, Run: s.run, check: s.Call.check,
	}.Command(c)
}

func (s Spec[Q, A]) run(g *Given, q Q) error {
	if s.Prepare != nil {
		if err := s.Prepare(g, q); err != nil {
			return err
		}
	}
	broker, err := s.connect(g)
	if err != nil {
		return err
	}
	if s.Wait != nil && g.Duration("wait") > 0 {
		return s.Await(g, broker, q, g.Args[0], g.Duration("wait"))
	}
	a, err := s.Call.make(g, broker, q)
	if err != nil {
		return err
	}
	if s.After != nil {
		if done, err := s.After(g, broker, q, a); done || err != nil {
			return err
		}
	}
	return s.Show(g, q, a)
}

func (s Spec[Q, A]) connect(g *Given) (*client.Client, error) {
	if s.Connect != nil {
		return s.Connect(g)
	}
	return g.Connect(g.Cmd.Context())
}

// Show prints an answer.
func (s Spec[Q, A]) Show(g *Given, q Q, a A) error {
	var shown proto.Message = a
	if s.Shown != "" {
		shown = newTarget(a.ProtoReflect(), s.Shown, "").get().Message().Interface()
	}
	return g.Show(g.Cmd, shown, func(w io.Writer) { s.Text(g, w, q, a) })
}

// Await shows the answer once it has the outcome, or the wait has ended. what names the thing.
func (s Spec[Q, A]) Await(g *Given, broker *client.Client, q Q, what string, wait time.Duration) error {
	var a A
	left := newTarget(q.ProtoReflect(), "wait", "")
	ask := func(most *durationpb.Duration) (reached bool, err error) {
		left.Set(protoreflect.ValueOfMessage(most.ProtoReflect()))
		a, err = s.Call.make(g, broker, q)
		return err == nil && s.Wait.Reached(a), err
	}
	reached, err := g.AwaitOutcome(g.Cmd.Context(), s.Wait.What+" "+what, wait, ask)
	if err != nil {
		return err
	}
	if err := s.Show(g, q, a); err != nil {
		return err
	}
	return s.Wait.Verdict(a, reached, wait)
}

// AwaitMade is what follows a call that has made the thing with an id: with --wait, its outcome in place of the answer.
func (s Spec[Q, A]) AwaitMade(g *Given, broker *client.Client, id string) (done bool, err error) {
	wait := g.Duration("wait")
	if wait == 0 {
		return false, nil
	}
	q := newMessage[Q]()
	newTarget(q.ProtoReflect(), "id", "").Set(protoreflect.ValueOfString(id))
	return true, s.Await(g, broker, q, id, wait)
}

// A Procedure is a command that makes more than one call, or none. Its arguments and options set the fields of a
// request, which is None if there are none.
type Procedure[Q proto.Message] struct {
	Page
	Args    []Arg
	Options []Option
	Apart   [][]string // options that exclude each other
	OneOf   []string   // options of which at least one must be given
	FlagsOf string     // the command whose page describes the options; "": its own

	Sets map[string]string // fields that Run always sets, and to what
	Says bool              // it makes the call that its arguments and options say
	Old  string            // the option that earlier versions took as an argument behind the others; still read

	Run func(g *Given, q Q) error

	check func() // nil, or panics if the declaration is wrong
}

// None is the request of a procedure whose options set no fields.
type None = *emptypb.Empty

// Command makes the command of one run.
func (p Procedure[Q]) Command(c *Caller) *cobra.Command {
	q := newMessage[Q]()
	cmd, bound := c.declare(p.Page, q, p.Args, p.Options)
	bound.sets, bound.old = p.Sets, p.Old
	if p.Says {
		c.forms.add(q, form{cmd, bound.words, slices.ContainsFunc(p.Args, func(a Arg) bool { return a.Caller })})
	}
	if p.Old != "" {
		cmd.Args = AtLeast(bound.names()...)
	}
	if p.FlagsOf != "" {
		cmd.Annotations[FlagsOf] = p.FlagsOf
	}
	c.BindLater(cmd, func() {
		if p.check != nil {
			p.check()
		}
		bound.options(c, cmd)
		for _, names := range p.Apart {
			cmd.MarkFlagsMutuallyExclusive(names...)
		}
		if p.OneOf != nil {
			cmd.MarkFlagsOneRequired(p.OneOf...)
		}
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		g := &Given{Caller: c, Cmd: cmd, Args: args}
		if err := bound.fill(g); err != nil {
			return err
		}
		if err := p.Run(g, q); err != nil {
			return err
		}
		if g.omission != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), g.omission)
		}
		return nil
	}
	return cmd
}

func newMessage[M proto.Message]() M {
	var none M
	return none.ProtoReflect().New().Interface().(M)
}

func (to Target) get() protoreflect.Value { return to.message().Get(to.field) }

// A binding connects the arguments and options of a command with its request.
type binding struct {
	request proto.Message
	use     string            // of the command
	sets    map[string]string // fields that the command always sets, and to what
	old     string            // the option that may also be an argument
	args    []Arg
	flags   []Option
	least   int  // how many arguments must be given
	many    bool // the last argument may be repeated
	set     func(*Given) error
}

// declare returns a command with its page and its rule for arguments. The options follow with binding.options.
func (c *Caller) declare(p Page, request proto.Message, args []Arg, options []Option) (*cobra.Command, *binding) {
	b := &binding{request: request, use: p.Use, args: args, flags: options}
	words, names := argumentsOf(p.Use), b.names()
	for _, word := range words {
		if word[0] != '[' {
			b.least++
		}
	}
	b.many = len(words) > 0 && strings.Contains(words[len(words)-1], "...")
	cmd := &cobra.Command{
		Use: p.Use, Short: p.Short, Long: p.Long, Example: p.Example, Args: cobra.NoArgs, Annotations: map[string]string{},
	}
	for i, word := range ArgumentWords(cmd) {
		if i < len(args) && args[i].Text {
			cmd.Annotations[mayBeEmpty] += word + " "
		}
	}
	switch {
	case b.many:
		cmd.Args = AtLeast(names[:b.least]...)
	case len(args) > 0:
		cmd.Args = Between(b.least, names...)
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, before []string, to string) ([]string, cobra.ShellCompDirective) {
		i := len(before)
		if b.many {
			i = min(i, len(args)-1)
		}
		if i >= len(args) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.completeKind(args[i].kind)(cmd, before, to)
	}
	return cmd, b
}

// names are the names of the arguments in errors.
func (b *binding) names() []string {
	return each.Of(b.args, func(a Arg) string { return a.Name })
}

func (a Arg) kind(before []string) Kind {
	if a.After != nil {
		return a.After(before)
	}
	return a.Kind
}

// argumentsOf returns the words for arguments in the usage of a command, those after flags left out.
func argumentsOf(use string) []string {
	words := strings.Fields(use)[1:]
	if i := slices.IndexFunc(words, func(word string) bool { return word[0] == '-' || word == "[flags]" }); i >= 0 {
		words = words[:i]
	}
	return words
}

// options adds the flags.
func (b *binding) options(c *Caller, cmd *cobra.Command) {
	b.set = BindOptions(c, cmd, b.request.ProtoReflect(), b.flags)
}

// readOld sets the option that was an argument before.
func (b *binding) readOld(g *Given) error {
	if b.old == "" || len(g.Args) <= len(b.args) {
		return nil
	}
	text := strings.Join(g.Args[len(b.args):], " ")
	if g.Cmd.Flags().Changed(b.old) {
		return problem.Usagef("argument %q is one too many: --%s says it already", text, b.old)
	}
	fmt.Fprintf(g.Cmd.ErrOrStderr(), "brokerctl: write --%s %s; the next version does not take it as an argument\n",
		b.old, prompt.ShellWord(prompt.Clean(text)))
	g.Args = g.Args[:len(b.args)]
	return g.Cmd.Flags().Set(b.old, text)
}

// fill sets the fields of the request from what the caller has given.
func (b *binding) fill(g *Given) error {
	if err := b.readOld(g); err != nil {
		return err
	}
	for i, a := range b.args {
		texts := g.Args[min(i, len(g.Args)):]
		if !b.many || i < len(b.args)-1 {
			texts = texts[:min(len(texts), 1)]
		}
		if a.Missing != nil && len(texts) == 0 {
			s, err := a.Missing(g)
			if err != nil {
				return err
			}
			texts = []string{s}
		}
		if a.Field == "" || len(texts) == 0 {
			continue
		}
		to := newTarget(b.request.ProtoReflect(), a.Field, Option{Field: a.Field}.flag())
		read := a.Kind.Read
		if read == nil {
			read = func(_ *Given, to Target, texts []string) error { return readField(to, texts) }
		}
		if err := read(g, to, texts); err != nil {
			return err
		}
	}
	return b.set(g)
}

// BindLater notes how the flags of a command are added. That takes descriptors, and only the command that runs needs
// it.
func (c *Caller) BindLater(cmd *cobra.Command, add func()) {
	if c.unbound == nil {
		c.unbound = map[*cobra.Command]func(){}
	}
	c.unbound[cmd] = add
}

// Bind adds the flags of the command that the command line names, or of all commands if it names none that runs alone,
// such as the completion of a shell.
func (c *Caller) Bind(root *cobra.Command) {
	cmd, _, err := root.Find(c.Args)
	if err == nil && cmd.Runnable() && !cmd.HasSubCommands() && cmd.Name() != "man" {
		c.bindOne(cmd)
		return
	}
	c.BindAll()
}

// bindOne adds the flags of a command, and of the one whose page describes them.
func (c *Caller) bindOne(cmd *cobra.Command) {
	if add := c.unbound[cmd]; add != nil {
		delete(c.unbound, cmd)
		add()
	}
	if path := cmd.Annotations[FlagsOf]; path != "" {
		other, _, err := cmd.Root().Find(strings.Fields(path))
		Must(err)
		c.bindOne(other)
	}
}

// BindAll adds the flags of all commands.
func (c *Caller) BindAll() {
	for _, add := range c.unbound {
		add()
	}
	c.unbound = nil
}
