package main

import (
	"testing"
	"time"
)

func TestExplain_LockThatIsContested(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "builder-1/builder", "builder-2/builder", "builder-3/builder")
	s.shows(s.finds([]string{"lock", "src/a.go"}, "INFO", "lock src/a.go", "it is free"))
	fence := at(t, fields(t, "--agent", "builder-1", "lock", "acquire", "src/", "--holder", "it's w1", "--reason", "refactoring"), "fence")
	s.finds([]string{"lock", "src/a.go"}, "INFO", "lock src/", "builder-1 (it's w1) holds it until 03:34:05 UTC (in 30m) at the latest", "refactoring", "the last call of builder-1 was at")
	queued := ctl(t, "--agent", "builder-2", "-o", "json", "lock", "acquire", "src/a.go", "--keep", "--reason", "a fix")
	ticket := number(at(t, decode(t, queued.out), "ticket"))
	ctl(t, "--agent", "builder-3", "lock", "acquire", "src/", "--keep", "--shared")
	s.fine()
	s.fine("lock", "src/a.go")
	s.finds([]string{"lock", "src/a.go"}, "INFO", "lock src/", "2 requests wait for it, the first for 0s (a warning after 5m)", "builder-2 waits since 03:04:05 UTC (now), ticket "+ticket+" (kept): a fix")
	s.finds([]string{"lock", "src/a.go"}, "INFO", "lock src/", "builder-3 waits for it (shared) behind 2 owners", "builder-2 waits before it for src/a.go, with ticket "+ticket)
	s.finds([]string{"lock", ticket}, "INFO", "lock src/a.go", "builder-2 waits for it behind 1 owner", "builder-1 (it's w1) holds src/ until")
	s.finds([]string{"lock", number(fence)}, "INFO", "lock src/", "builder-1 (it's w1) holds it")
	s.finds([]string{"agent", "builder-1"}, "INFO", "lock src/", "builder-1 (it's w1) holds it")
	s.finds([]string{"agent", "builder-2"}, "INFO", "lock src/a.go", "builder-2 waits for it")
	must0(t, "agent", "halt", "builder-1")
	s.finds([]string{"lock", "src/a.go"}, "WARNING", "lock src/", "builder-1 is halted")
	s.finds([]string{"lock", ticket}, "WARNING", "lock src/a.go", "builder-1 is halted")
	must0(t, "agent", "resume", "builder-1")
	s.fine("lock", "src/a.go")
	s.Advance(6 * time.Minute)
	f := s.finds(nil, "WARNING", "lock src/", "2 requests wait for it, the first for 6m (a warning after 5m)")
	s.shows(f)
	s.frees(f, "brokerctl lock revoke "+number(fence)+" --reason 'an operator needs it'")
	s.finds([]string{"lock", "src/a.go"}, "WARNING", "lock src/a.go", "builder-2 holds it", "builder-2 has not collected it (a warning after 30s); its right to it ends at 03:12:05 UTC (in 2m)")
	must0(t, "--agent", "builder-2", "lock", "acquire", "src/a.go")
	must0(t, "--agent", "builder-2", "lock", "release", "src/a.go")
	s.fine()
	if got := ctl(t, "explain", "lock", ticket); got.code != 3 {
		t.Errorf("%+v", got)
	}

	// Who waits may also be made to give up.
	queued = ctl(t, "--agent", "builder-1", "-o", "json", "lock", "acquire", "src/b.go", "--keep")
	ticket = number(at(t, decode(t, queued.out), "ticket"))
	f = s.finds([]string{"lock", ticket}, "INFO", "lock src/b.go", "builder-1 waits for it", "builder-3 holds src/ (shared) until")
	s.run(f.commands[len(f.commands)-1])
	if got := ctl(t, "explain", "lock", ticket); got.code != 3 {
		t.Errorf("%+v", got)
	}
	for _, bad := range []string{"/etc", "../x"} {
		if got := ctl(t, "explain", "lock", bad); got.code != 2 {
			t.Errorf("%+v", got)
		}
	}
}

func TestExplain_TokenThatIsPassedAndContested(tt *testing.T) {
	t := newShell(tt)
	s := newStage(t)
	register(t, "builder-1/builder", "builder-2/builder", "critic-1/critic")
	about := []string{"token", "review", "it's login"}
	must0(t, "--agent", "builder-1", "token", "acquire", "review", "it's login", "--for", "2h")
	s.finds(about, "INFO", "token review/it's login", "builder-1 holds it until 05:04:05 UTC (in 2h)")
	ctl(t, "--agent", "builder-2", "token", "acquire", "review", "it's login", "--keep")
	s.finds(about, "INFO", "token review/it's login", "builder-1 holds it", "1 request waits for it", "builder-2 waits since")
	s.finds(about, "INFO", "token review/it's login", "builder-2 waits for it behind 1 owner", "builder-1 holds review/it's login until")
	s.finds([]string{"agent", "builder-2"}, "INFO", "token review/it's login", "builder-2 waits for it")
	s.fine()
	s.Advance(6 * time.Minute)
	s.finds(nil, "WARNING", "token review/it's login", "builder-1 holds it", "the first for 6m")
	f := s.finds(about, "WARNING", "token review/it's login", "builder-1 holds it")
	s.frees(f, "brokerctl token revoke review 'it'\\''s login' --reason 'an operator needs it'")
	s.finds(about, "INFO", "token review/it's login", "builder-2 holds it", "builder-2 has not collected it")
	must0(t, "--agent", "builder-2", "token", "acquire", "review", "it's login")
	s.fine()

	must0(t, "--agent", "builder-2", "token", "pass", "review", "it's login", "role:critic", "--note", "please look")
	f = s.finds(about, "INFO", "token review/it's login", "the role critic holds it", "builder-2 passed it to the role critic: please look", "the role critic has not collected it")
	s.shows(f)
	s.Advance(31 * time.Second)
	s.fine() // no other agent waits for it
	ctl(t, "--agent", "builder-1", "token", "acquire", "review", "it's login", "--keep")
	f = s.finds(about, "INFO", "token review/it's login", "builder-1 waits for it behind 1 owner", "the role critic holds review/it's login until")
	s.finds(nil, "WARNING", "token review/it's login", "the role critic holds it")
	s.run(f.commands[len(f.commands)-1]) // it gives up
	must0(t, "--agent", "critic-1", "token", "acquire", "review", "it's login")
	s.fine()
	must0(t, "--agent", "critic-1", "token", "release", "review", "it's login")
	f = s.finds(about, "INFO", "token review/it's login", "it is available")
	s.run(f.commands[0])
}
