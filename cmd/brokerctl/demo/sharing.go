package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

const (
	file, folder = "auth/login.go", "auth/"
	moment       = 700 * time.Millisecond
)

// share is the second act: two builders and the reviewer share files and a turn, and builder-1
// crashes.
func (m *team) share(ctx context.Context) error {
	crash, err := m.present(ctx, builder1)
	if err != nil {
		return err
	}
	defer crash()
	m.pace.take(ctx, moment)
	locked, err := m.run(ctx, builder1, "lock", "acquire", file, "--reason", "the login form")
	if err != nil {
		return err
	}
	m.s.result(builder1, green, strings.TrimSpace(locked))
	fence := regexp.MustCompile(`fence (\d+)`).FindStringSubmatch(locked)
	if fence == nil {
		return fmt.Errorf("no fence in %q", locked)
	}
	m.pace.take(ctx, moment)
	if err := m.refuse(ctx, builder2, 5, "lock", "acquire", folder); err != nil {
		return err
	}
	m.pace.take(ctx, moment)
	crashed := make(chan struct{})
	go func() {
		defer close(crashed)
		m.pace.take(ctx, 2*moment)
		crash()
		m.s.result(builder1, red, "crashes (kill -9); its lease ends after 3s")
	}()
	err = m.tell(ctx, builder2, green, "lock", "acquire", folder, "--wait", "30s")
	<-crashed
	if err != nil {
		return err
	}
	select {
	case <-m.failed: // the operator has seen it
	case <-ctx.Done():
		return ctx.Err()
	}
	m.pace.take(ctx, moment)
	if _, err := m.run(ctx, builder2, "lock", "release", "--all"); err != nil {
		return err
	}
	if err := m.turn(ctx); err != nil {
		return err
	}
	m.pace.take(ctx, moment)
	m.s.result(builder1, plain, "returns")
	if err := m.refuse(ctx, builder1, 6, "BROKERD_FENCE="+fence[1], "send", reviewer, file+" is done"); err != nil {
		return err
	}
	m.pace.take(ctx, moment)
	return m.tell(ctx, builder1, yellow, "agent", "register", builder1, "--role", "builder")
}

// present keeps an agent alive by `agent run` until the returned function kills it.
func (m *team) present(ctx context.Context, name string) (crash func(), err error) {
	args := []string{"agent", "run", "--role", "builder", "--lease", "3s", "--", "cat"}
	m.s.command(name, commandLine(args)+"  # in another terminal")
	cmd := m.command(ctx, name, args)
	in, reads := cmd.StdinPipe()
	out, writes := cmd.StdoutPipe()
	if err := errors.Join(reads, writes); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	// The process must end before cat does, which ends with its input: an agent whose program has ended leaves
	// in good order. Wait closes the input.
	crash = func() {
		_ = cmd.Process.Kill() // an error means that it has ended
		_ = cmd.Wait()         // it was killed
	}
	// The agent is registered when cat copies a line.
	fmt.Fprintln(in, "present")
	if !bufio.NewScanner(out).Scan() {
		crash()
		return nil, fmt.Errorf("%s has ended", commandLine(args))
	}
	return crash, nil
}

// turn passes the token for deployments from the reviewer to a builder.
func (m *team) turn(ctx context.Context) error {
	token := []string{"deploy", "staging"}
	command := func(verb string, more ...string) []string {
		return append(append([]string{"token", verb}, token...), more...)
	}
	for _, step := range []struct {
		member string
		args   []string
	}{
		{reviewer, command("acquire")},
		{reviewer, command("pass", builder2, "--note", "the tests are green")},
		{builder2, command("acquire")},
		{builder2, command("release")},
	} {
		m.pace.take(ctx, moment)
		if err := m.tell(ctx, step.member, green, step.args...); err != nil {
			return err
		}
	}
	return nil
}
