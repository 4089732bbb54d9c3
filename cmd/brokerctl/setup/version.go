package setup

import (
	"cmp"
	"context"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/internal/prompt"
)

// wakes reports whether the installed program of a coding agent has hooks that wake it. An older one would run
// such a hook as any other, and wait for it.
func (o *setupOptions) wakes(c *command.Caller, v Vendor) bool {
	return v.Wakes != "" && slices.Compare(versionOf(o.version(c, v)), versionOf(v.Wakes)) >= 0
}

// version returns what the installed program of a coding agent says about its version; "" without the program. It asks
// it once.
func (o *setupOptions) version(c *command.Caller, v Vendor) string {
	said, asked := o.versions[v.Name]
	if asked {
		return said
	}
	if program, err := c.Env.LookPath(v.Programs[0]); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), versionTime)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, "--version")
		cmd.Env, cmd.Dir = c.Env.Variables, c.Env.Dir
		out, err := cmd.Output()
		said = prompt.Either(err == nil, string(out), "unknown")
	}
	if o.versions == nil {
		o.versions = map[string]string{}
	}
	o.versions[v.Name] = said
	return said
}

// versionTime is how long a program may take to say its version.
const versionTime = 10 * time.Second

// aVersion matches the version in what a program says.
var aVersion = regexp.MustCompile(`\d+(\.\d+)+`)

// versionOf returns the parts of the first version in a text; none if there is no version.
func versionOf(text string) (parts []int) {
	for part := range strings.SplitSeq(aVersion.FindString(text), ".") {
		if n, err := strconv.Atoi(part); err == nil {
			parts = append(parts, n)
		}
	}
	return parts
}

// checkProgram says what the tests have shown for the version of the installed program. There is no check without one.
func (o *setupOptions) checkProgram(c *command.Caller, v Vendor) []setupCheck {
	said := o.version(c, v)
	if said == "" {
		return nil
	}
	version, tested := aVersion.FindString(said), aVersion.FindString(v.Tested)
	text := v.Programs[0] + " " + cmp.Or(version, "of an unknown version")
	switch {
	case tested == "":
		return []setupCheck{{"program", true, text + " was not tested, in no version"}}
	case version == tested:
		text += " is the tested version"
	default:
		text += " was not tested; with " + tested
	}
	text += ": mail arrives " + prompt.Either(o.wakes(c, v), v.Idle+", ", "") + "in a turn, and without a screen (" + v.Once + ")"
	switch {
	case v.Idle == "":
		text += "; nothing wakes an idle session, and its user's next prompt brings mail"
	case !o.wakes(c, v):
		text += "; from " + v.Wakes + " on also " + v.Idle
	}
	return []setupCheck{{"program", true, text}}
}
