package crashtest_test

import (
	"encoding/json"
	"slices"
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

// A turnLog goes through the events of locks and tokens: nobody is granted what another holds, fences and tickets are the numbers of the
// events, and nobody is granted what another has waited for longer. (Nobody here holds something and waits for
// something else, so that there is no exception to that.)
type turnLog struct {
	record  *turnRecord
	holds   []logged
	waits   []logged         // in order
	granted map[int64]string // by fence
	passed  wish             // the token that was passed on by the last event, if any was
}

// logged is a grant or a ticket as the log has it.
type logged struct {
	number int64
	who    string
	wish   wish
}

// event goes on by one event.
func (l *turnLog) event(e *pb.Event) {
	kind, what, _ := strings.Cut(e.GetType(), ".")
	if kind != "lock" && kind != "token" {
		return
	}
	var details struct {
		Agent, Token, Mode string
		Paths              []string
		Fence, Ticket      int64
	}
	if err := json.Unmarshal([]byte(e.GetDetails()), &details); err != nil {
		l.record.wrong("the details of an event are not JSON: %v", e)
		return
	}
	one := logged{number: e.GetRevision(), who: details.Agent}
	if kind == "token" {
		_, one.wish.token, _ = strings.Cut(details.Token, "/")
	} else {
		one.wish.path, one.wish.shared = strings.Join(details.Paths, " "), details.Mode == "shared"
	}
	switch what {
	case "queued":
		l.waits = append(l.waits, one)
	case "cancelled", "lapsed", "deadlock":
		l.waits = slices.DeleteFunc(l.waits, func(w logged) bool { return w.number == details.Ticket })
	case "granted":
		l.grant(one, details.Ticket)
	case "passed": // its new grant is the next event, whoever waits
		l.passed = one.wish
		fallthrough
	case "released", "expired", "revoked":
		l.holds = slices.DeleteFunc(l.holds, func(h logged) bool { return h.number == details.Fence })
	}
}

// grant checks a grant, of a ticket if that is not 0.
func (l *turnLog) grant(one logged, ticket int64) {
	for _, h := range l.holds {
		if h.who != one.who && h.wish.conflicts(one.wish) {
			l.record.wrong("the log grants %+v while there is %+v", one, h)
		}
	}
	for _, w := range l.waits {
		if w.number == ticket || l.passed == one.wish {
			break
		}
		if w.who != one.who && w.wish.conflicts(one.wish) {
			l.record.wrong("the log grants %+v (ticket %d) before %+v", one, ticket, w)
		}
	}
	l.passed = wish{}
	l.waits = slices.DeleteFunc(l.waits, func(w logged) bool { return w.number == ticket })
	l.holds = append(l.holds, one)
	l.granted[one.number] = one.who
}
