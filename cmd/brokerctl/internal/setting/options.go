package setting

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/prompt"
)

// Options are the options of every command.
type Options struct {
	Addr    string
	Session string
	Agent   string
	Output  string

	noConfig bool
	screenOptions

	Operator bool // --agent '' was given: act as operator whatever the environment says
	// yields is set where setup writes --agent into a file that all sessions of a folder read: the environment, and an init
	// in the session of the coding agent, speak of one session, and win.
	Yields bool
}

// AddFlags adds the options; the environment gives their defaults when they are used.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Addr, "addr", "", "the broker: unix:PATH, tls://HOST:PORT or HOST:PORT; several with commas (BROKERD_ADDR; default: the local one)")
	f.StringVar(&o.Session, "session", "", "the session to work in (BROKERD_SESSION; default: default)")
	f.StringVarP(&o.Agent, "agent", "a", "", "the agent to act as (BROKERD_AGENT; none or '': as operator)")
	f.StringVarP(&o.Output, "output", "o", "", "table, json, prompt or id (BROKERD_OUTPUT; default: table)")
	f.BoolVar(&o.noConfig, "no-config", false, "ignore .brokerd.yaml")
	o.screenOptions.AddFlags(f)
}

// Again is how a suggested command begins: with the flags of this run that say where and as whom it acts.
func (o Options) Again() string {
	s := "brokerctl" + prompt.Either(o.noConfig, " --no-config", "") + prompt.Either(o.Operator, " --agent ''", "")
	for _, f := range [][2]string{{"--addr", o.Addr}, {"--session", o.Session}, {"--agent", o.Agent}} {
		s += prompt.Either(f[1] != "", " "+f[0]+" "+prompt.ShellWord(f[1]), "")
	}
	return s
}

// screenOptions say how text is laid out and coloured, and how times are written.
type screenOptions struct {
	Color    string
	Wide     bool
	Absolute bool
	UTC      bool
	Relative bool
}

// ColorChoices are the values of --color.
var ColorChoices = []string{"auto", "always", "never"}

// AddFlags adds the options.
func (o *screenOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Color, "color", "auto", strings.Join(ColorChoices, ", ")+" (NO_COLOR)")
	f.BoolVar(&o.Wide, "wide", false, "show all columns in full")
	f.BoolVar(&o.Absolute, "absolute", false, "show times as local times")
	f.BoolVar(&o.UTC, "utc", false, "show times as UTC")
	f.BoolVar(&o.Relative, "relative", false, "show times as distances from now")
}

// Check reports options that cannot be right.
func (o *screenOptions) Check() error {
	switch {
	case !slices.Contains(ColorChoices, o.Color):
		return problem.Usagef("--color %q is none of %s", o.Color, strings.Join(ColorChoices, ", "))
	case o.Absolute && o.UTC:
		return problem.Usagef("--absolute and --utc exclude each other")
	case o.Relative && (o.Absolute || o.UTC):
		return problem.Usagef("--relative excludes --absolute and --utc")
	}
	return nil
}
