package tasks

import "time"

// Limits. Bytes unless said otherwise.
const (
	mostEdges       = 5000    // dependencies of one call
	mostRows        = 10_000  // rows that one call changes, about
	letterRows      = 5       // that a letter changes, about
	noticeRows      = 4       // that a notice changes, about
	mostUnfinished  = 100_000 // tasks of a session
	mostQueues      = 10_000  // combinations of assignee, role and capabilities of a session's unfinished tasks
	mostListed      = 100     // attempts, dependents, subtasks, references of one kind
	mostNamed       = 5       // blockers in the text of an error
	mostCancelled   = 1000    // tasks that one call cancels at once
	mostCascaded    = 8000    // rows from which on a cascade leaves the rest to the backlog
	mostResumed     = 1000    // claims of an agent among which a resumed one is chosen
	mostRead        = 20_000  // tasks that one page of a list reads
	mostAwaited     = 1000    // tasks and agents of one wait
	mostWaiters     = 10_000  // claims of a session that wait
	maxShown        = 1 << 10 // of an error that a task carries
	maxPage         = 2 << 20 // of a list
	defaultAttempts = 3
	defaultPriority = 5
	firstBackoff    = time.Second
	longestBackoff  = 5 * time.Minute
)

// backoff is how long a task waits after its n-th failed attempt.
func backoff(n int32) time.Duration {
	wait := firstBackoff
	for ; n > 1 && wait < longestBackoff; n-- {
		wait *= 2
	}
	return min(wait, longestBackoff)
}
