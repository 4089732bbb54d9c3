package mcp

import (
	"slices"
	"strconv"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// lockPage is how many locks a result lists.
const lockPage = 50

// lockPaths returns the paths of locks for the names of files.
func (s *toolServer) lockPaths(names []string) ([]string, error) {
	if s.Paths == nil || len(names) == 0 {
		return names, nil
	}
	return s.Paths(names)
}

// lockTargets tells the fences and tickets among given locks from the paths: a whole number is no path unless it is
// written ./4711.
func lockTargets(c *call) (numbers []int64, paths []string, err error) {
	var files []string
	for _, s := range c.args["paths"] {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil && n > 0 {
			numbers = append(numbers, n)
		} else {
			files = append(files, s)
		}
	}
	paths, err = c.server.lockPaths(files)
	return numbers, paths, err
}

func acquireLocks(c *call) error {
	paths, err := c.server.lockPaths(c.args["paths"])
	if err != nil {
		return err
	}
	hold, err := c.span("for")
	if err != nil {
		return err
	}
	mode := pb.LockMode_LOCK_MODE_EXCLUSIVE
	if c.arg("shared") == "true" {
		mode = pb.LockMode_LOCK_MODE_SHARED
	}
	answer, err := c.api.AcquireLocks(c.ctx, &pb.AcquireLocksRequest{
		RequestId: c.requestID, Paths: paths, Mode: mode, Wait: duration(c.wait()), MaxHold: hold, Reason: c.arg("reason"),
	})
	if err != nil {
		return err
	}
	if answer.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		return notLocked(c, answer, paths)
	}
	verb := "locked"
	if answer.GetAlreadyHeld() {
		verb = "held before:"
	}
	_ = c.say("%s %s, ends %s, fence %d",
		verb, prompt.Paths(paths), c.voice.When(answer.GetHeldUntil()), answer.GetFence())
	fence := []int64{answer.GetFence()}
	return c.say("Next: %s when done; %s for more time", do(&pb.ReleaseLocksRequest{Fences: fence}),
		do(&pb.ExtendLocksRequest{Fences: fence}))
}

// notLocked is the outcome that says which holders are in the way: now, or after the wait.
func notLocked(c *call, answer *pb.AcquireLocksResponse, paths []string) error {
	text := c.voice.InTheWay(answer.GetObstacles(), paths, true)
	if answer.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_QUEUED {
		return refusef(`%s; the same call with "wait":%g waits for it`, text, mostWait.Seconds())
	}
	if answer.GetTicket() == 0 {
		return nothingf("the wait has ended: %s", text)
	}
	return nothingf("the wait has ended: %s; place %d in the queue, ticket %d; the same call within 10 s keeps the place",
		text, answer.GetPosition(), answer.GetTicket())
}

func releaseLocks(c *call) error {
	request := &pb.ReleaseLocksRequest{RequestId: c.requestID}
	if c.arg("paths") == "all" {
		request.All = true
	} else {
		numbers, paths, err := lockTargets(c)
		if err != nil {
			return err
		}
		request.Paths, request.Fences, request.Tickets = paths, numbers, numbers // each is one of both
	}
	answer, err := c.api.ReleaseLocks(c.ctx, request)
	released, cancelled := answer.GetReleased(), prompt.Count(int64(answer.GetCancelled()), "request")
	switch {
	case err != nil:
		return err
	case released == 0 && answer.GetCancelled() == 0 && request.GetAll():
		return c.say("nothing was held")
	case released == 0 && answer.GetCancelled() == 0:
		return noSuchLock(c, request)
	case released == 0:
		return c.say("cancelled %s", cancelled)
	case answer.GetCancelled() > 0:
		return c.say("released %s, cancelled %s", prompt.Count(int64(released), "path"), cancelled)
	}
	return c.say("released %s", prompt.Count(int64(released), "path"))
}

// noSuchLock is the outcome of a release that found nothing: it names a lock that covers what the request names, if
// there is one.
func noSuchLock(c *call, request *pb.ReleaseLocksRequest) error {
	for _, path := range request.GetPaths() {
		found, err := c.api.ListLocks(c.ctx, &pb.ListLocksRequest{Path: path})
		if err != nil {
			return err
		}
		var other *pb.Lock
		for _, l := range found.GetLocks() {
			if l.GetAgent() == c.name && l.GetHolder() == "" {
				return refusef("%s is not locked under this name; you hold it with %s (fence %d): %s", prompt.ShellWord(path),
					prompt.Paths(l.GetPaths()), l.GetFence(), do(&pb.ReleaseLocksRequest{Fences: []int64{l.GetFence()}}))
			}
			other = l
		}
		if other != nil { // its paths are texts of others
			return refusef("%s is held by %s", prompt.ShellWord(path), other.GetAgent())
		}
	}
	return refusef("the agent %s neither holds such a lock nor waits for it: it never did, or it has lost it; "+
		"stop the work that needs it", c.name)
}

func extendLocks(c *call) error {
	hold, err := c.span("for")
	if err != nil {
		return err
	}
	fences, paths, err := lockTargets(c)
	if err != nil {
		return err
	}
	var what []string
	for _, fence := range fences {
		what = append(what, strconv.FormatInt(fence, 10))
	}
	for _, path := range paths {
		held, err := c.api.ListLocks(c.ctx, &pb.ListLocksRequest{Agent: c.name, Path: path})
		if err != nil {
			return err
		}
		i := slices.IndexFunc(held.GetLocks(), func(l *pb.Lock) bool {
			return l.GetHolder() == "" && slices.Contains(l.GetPaths(), path)
		})
		if i < 0 {
			return refusef("%s does not hold %s", c.name, path)
		}
		fences, what = append(fences, held.GetLocks()[i].GetFence()), append(what, path)
	}
	answer, err := c.api.ExtendLocks(c.ctx, &pb.ExtendLocksRequest{
		RequestId: c.requestID, Fences: fences, MaxHold: hold,
	})
	for i, t := range answer.GetHeldUntil() {
		_ = c.say("extended %s, ends %s", what[i], c.voice.When(t))
	}
	return err
}

func listLocks(c *call) error {
	paths, err := c.server.lockPaths(c.args["paths"])
	if err != nil {
		return err
	}
	answer, err := c.api.ListLocks(c.ctx, &pb.ListLocksRequest{Path: strings.Join(paths, ""), PageSize: lockPage})
	if err != nil {
		return err
	}
	for _, l := range answer.GetLocks() {
		state := "held"
		if l.GetUncollected() {
			state = "granted, not collected"
		}
		if n := l.GetWaiting(); n > 0 {
			state += ", " + strconv.Itoa(int(n)) + " waiting"
		}
		c.line("lock", strconv.FormatInt(l.GetFence(), 10), state, prompt.Enum(l.GetMode()),
			"owner", prompt.Owner(l.GetAgent(), l.GetHolder()), "since", c.voice.When(l.GetGrantedAt()),
			"ends", c.voice.When(l.GetHeldUntil()), "paths", prompt.Paths(l.GetPaths()), "reason", l.GetReason())
	}
	for _, t := range answer.GetTickets() {
		state := "place " + strconv.Itoa(int(t.GetPosition()))
		if o := t.GetObstacles(); len(o) > 0 {
			state += " behind " + prompt.Owner(o[0].GetAgent(), o[0].GetHolder())
		}
		c.line("ticket", strconv.FormatInt(t.GetTicket(), 10), state, prompt.Enum(t.GetMode()),
			"owner", prompt.Owner(t.GetAgent(), t.GetHolder()), "since", c.voice.When(t.GetCreatedAt()),
			"paths", prompt.Paths(t.GetPaths()), "reason", t.GetReason())
	}
	return c.none(len(answer.GetLocks())+len(answer.GetTickets()), "locks", answer.GetNextPageToken())
}
