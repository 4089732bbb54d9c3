package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/brokerctl/toolcall"
	pb "brokerd/gen/brokerd/v1"
)

// A toolRun runs the command line of one tool call, again if the broker restarts meanwhile. All
// attempts have one request id, so a change is made once.
type toolRun struct {
	from      *cli
	mark      string // of the frames in the result
	member    *member
	tool      string
	words     []string
	end       time.Time // of further attempts
	requestID string
}

func (r *toolRun) run(ctx context.Context) outcome {
	id, err := uuid.NewV7()
	if err != nil {
		return outcome{err.Error(), true}
	}
	r.requestID = id.String()
	const pause = 200 * time.Millisecond
	began, renewed := time.Now(), false
	for {
		broker, err := r.member.join(ctx)
		var out string
		var p problem
		if err == nil {
			out, p, err = r.once(ctx, broker, time.Since(began))
		} else {
			_, p.Message = (&cli{tools: true}).explain(err)
			p.exit = exitUnreachable
		}
		switch {
		case err == nil:
		case status.Code(err) == codes.Unavailable && time.Now().Before(r.end):
			again := time.NewTimer(pause)
			select {
			case <-again.C:
				continue
			case <-ctx.Done():
				again.Stop()
			}
		case !renewed && broker != nil && r.member.lost(ctx, broker, err):
			renewed = true
			continue
		case r.member.reason() != nil:
			return outcome{r.member.reason().Error(), true}
		}
		return outcome{r.text(out, p), !slices.Contains([]int{exitDone, exitNothing, exitRevise, exitRejected}, p.exit)}
	}
}

// once runs the command line, which waits for so much less. It returns what brokerctl prints, and
// the error also as brokerctl reports it.
func (r *toolRun) once(ctx context.Context, broker *client.Client, less time.Duration) (string, problem, error) {
	var out, warnings bytes.Buffer
	found := *r.from.found
	found.output, found.agent = setting{formatPrompt, "mcp"}, setting{broker.Identity().Agent, "mcp"}
	env := r.from.env
	env.In, env.Out, env.Err, env.Columns, env.ErrTerminal, env.Signals = noInput{}, &out, &warnings, 0, false, nil
	env.Mark = func() string { return r.mark }
	c := &cli{
		env: env, client: broker, found: &found, args: r.words, hurry: make(chan struct{}), tools: true,
	}
	root := newRoot(c)
	words := slices.Clone(r.words)
	for i, word := range words {
		if s, found := strings.CutPrefix(word, "--wait="); found && less > time.Second {
			if wait, err := time.ParseDuration(s); err == nil {
				words[i] = "--wait=" + max(wait-less, time.Millisecond).String()
			}
		}
	}
	if cmd, _, err := root.Find(words); err == nil && cmd.Flags().Lookup("request-id") != nil {
		words = slices.Insert(words, slices.Index(words, "--"), "--request-id="+r.requestID)
	}
	root.SetArgs(words)
	root.SetIn(noInput{})
	root.SetOut(&out)
	root.SetErr(&warnings)
	err := root.ExecuteContext(ctx)
	if err = cmp.Or(err, c.unknown, c.endOutput()); err == nil {
		return out.String() + strings.ReplaceAll(warnings.String(), "brokerctl: ", ""), problem{}, nil
	}
	return out.String() + strings.ReplaceAll(warnings.String(), "brokerctl: ", ""), c.problem(err), err
}

// text is what the model reads: the output, then the problem in terms of the tool.
func (r *toolRun) text(out string, p problem) string {
	if p.text() != "" {
		text := toolcall.Explain(r.tool, p.text())
		if p.exit == exitUsage {
			text = strings.ReplaceAll(text, "brokerctl ", "")
		}
		out += text + "\n" + (&cli{env: environment{Mark: func() string { return r.mark }}}).quote(p)
	}
	if r.tool == "turn" && p.exit == exitNothing {
		out += `Next: turn {"wait":60} to wait for work, or end if you expect none` + "\n"
	}
	return out
}

// onlyTask returns the id of the task that the agent holds, if that is all it holds; otherwise "".
func onlyTask(ctx context.Context, broker *client.Client) (string, error) {
	answer, err := broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	if err != nil {
		return "", fmt.Errorf("find what the agent holds: %w", err)
	}
	var tasks []string
	for _, i := range answer.GetHoldings().GetWork() {
		if i.GetKind() == "task" && i.GetRelation() == pb.WorkRelation_WORK_RELATION_HOLDS {
			tasks = append(tasks, i.GetId())
		}
	}
	if len(answer.GetHoldings().GetClaims()) > 0 || len(tasks) != 1 {
		return "", nil
	}
	return tasks[0], nil
}
