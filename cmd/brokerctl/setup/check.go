package setup

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/brokerctl/harness"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/registration"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// A setupCheck is one thing that setup checks in the end. It is part of the JSON output.
type setupCheck struct {
	What string `json:"what"` // files, program, broker, agent or hooks
	OK   bool   `json:"ok"`
	Text string `json:"text"` // what is the case, and what to do if it is not OK
}

// setupChecking is how long the checks take at most.
const setupChecking = 30 * time.Second

// checkOnly makes the checks for a coding agent, and changes nothing.
func (o *setupOptions) checkOnly(c *command.Caller, cmd *cobra.Command, v Vendor) error {
	folder, err := o.folder(c)
	if err != nil {
		return err
	}
	plan, err := o.plan(c, v, false)
	if err != nil {
		return err
	}
	files := setupCheck{"files", true, "each file has what setup adds"}
	for _, change := range plan {
		if change.Action != "unchanged" {
			files = setupCheck{"files", false, fmt.Sprintf("%s is not as setup makes it: brokerctl setup %s --dry-run", change.Path, v.Name)}
			break
		}
	}
	checks := append([]setupCheck{files}, o.checks(cmd.Context(), c, v)...)
	done := Outcome{Vendor: v.Name, Folder: folder, Checks: checks}
	if err := o.show(c, cmd, v, done); err != nil {
		return err
	}
	failed := 0
	for _, check := range done.Checks {
		if !check.OK {
			failed++
		}
	}
	if failed > 0 {
		return problem.Failf(problem.ExitError, "%s of %d failed", prompt.Count(failed, "check"), len(done.Checks))
	}
	return nil
}

// checks says what works with the installed program, and checks what the files need: a broker, a name that no program of
// another folder has, and hooks that answer.
func (o *setupOptions) checks(ctx context.Context, c *command.Caller, v Vendor) []setupCheck {
	return append(o.checkProgram(c, v), o.checkNeeds(ctx, c, v)...)
}

// checkNeeds checks what the files need.
func (o *setupOptions) checkNeeds(ctx context.Context, c *command.Caller, v Vendor) []setupCheck {
	ctx, cancel := context.WithTimeout(ctx, setupChecking)
	defer cancel()
	agent := v.Agent
	c.Found = nil // the configFile may be new
	if s, err := c.Settings(); err == nil {
		agent = cmp.Or(agent, s.Agent.Value)
		c.Found.Unchosen = nil // the name is given for each call
	}
	broker, err := c.Connect(ctx)
	if err == nil {
		broker = broker.As("")
		_, err = broker.Sessions().GetSession(ctx, &pb.GetSessionRequest{})
	}
	if err != nil {
		_, text := c.Explain(err)
		return []setupCheck{{"broker", false, text}}
	}
	all := []setupCheck{{"broker", true, "the broker at " + broker.Address() + " answers"}}
	switch {
	case agent != "":
		all = append(all, nameCheck(ctx, c, broker, agent))
	case !o.user:
		all = append(all, setupCheck{"agent", false, "the hooks have no name here: brokerctl setup " + v.Name + " --agent NAME"})
	}
	return append(all, o.checkHooks(ctx, c, v, agent))
}

// nameCheck checks that the agent may have its name in this folder.
func nameCheck(ctx context.Context, c *command.Caller, broker *client.Client, agent string) setupCheck {
	check := func(ok bool, format string, args ...any) setupCheck {
		return setupCheck{"agent", ok, agent + " " + fmt.Sprintf(format, args...)}
	}
	dir, err := c.Env.WorkingDir()
	if err != nil {
		return check(false, "cannot be checked: %v", err)
	}
	elsewhere, err := registration.TakenElsewhere(ctx, broker, agent, dir)
	if err != nil {
		_, text := c.Explain(err)
		return check(false, "cannot be checked: %s", text)
	}
	if elsewhere {
		return check(false, "is the name of an agent in another folder (brokerctl agent get %s): choose another name", prompt.ShellWord(agent))
	}
	known, err := broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: agent})
	switch a := known.GetAgent(); {
	case status.Code(err) == codes.NotFound:
		return check(true, "is a free name: its program registers it")
	case err != nil:
		_, text := c.Explain(err)
		return check(false, "cannot be checked: %s", text)
	default:
		return check(true, "is registered%s", prompt.Either(a.GetRole() != "", " as "+a.GetRole(), ""))
	}
}

// checkHooks runs the hook as the coding agent will, with an event that changes nothing.
func (o *setupOptions) checkHooks(ctx context.Context, c *command.Caller, v Vendor, agent string) setupCheck {
	path, err := c.Env.LookPath("brokerctl")
	if err != nil {
		return setupCheck{"hooks", false, "put brokerctl into PATH: coding agents call it by this name"}
	}
	if agent == "" {
		return setupCheck{"hooks", true, "brokerctl is in PATH"}
	}
	args := []string{"hook", v.Name}
	if v.Agent != "" {
		args = append(args, "--agent", v.Agent)
	}
	var errs bytes.Buffer
	hook := exec.CommandContext(ctx, path, args...)
	hook.Stdin = strings.NewReader(`{"hook_event_name":"` + harness.CheckEvent + `"}`)
	hook.Env, hook.Dir, hook.Stderr = c.Env.Variables, c.Env.ChildDir(), &errs
	err = hook.Run()
	if text := prompt.OneLine(strings.TrimSpace(errs.String())); err != nil || text != "" {
		return setupCheck{"hooks", false, "brokerctl " + strings.Join(args, " ") + ": " + cmp.Or(text, fmt.Sprint(err))}
	}
	return setupCheck{"hooks", true, "brokerctl " + strings.Join(args, " ") + " answers"}
}

func showChecks(c *command.Caller, out io.Writer, checks []setupCheck) {
	for _, check := range checks {
		fmt.Fprintf(out, "  %-9s  %s: %s\n", prompt.Either(check.OK, "ok", "not ok"), check.What, prompt.Clean(check.Text))
	}
}
