package browsertest

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp/kb"

	pb "brokerd/gen/brokerd/v1"
)

const (
	someRows = 10_000
	manyRows = 100_000 // of make dashboard-load
	mostRows = 120     // elements of a list in the document
	mostHeap = 20      // MB
	batch    = 1000
)

// fill sends messages to a role that no agent has. Each is an event, too.
func (m *team) fill(rows int) {
	m.t.Helper()
	m.unlimit()
	for i := range rows / batch {
		messages := make([]*pb.Message, batch)
		for j := range messages {
			messages[j] = toRole("designer", fmt.Sprintf("Message %d", i*batch+j))
		}
		m.send("lead", messages...)
	}
}

// killMany makes dead letters. The broker delivers no further message to an agent whose attempts fail, so
// each agent makes one batch.
func (m *team) killMany(rows int) {
	m.t.Helper()
	for i := range rows / batch {
		agent := fmt.Sprintf("failing-%d", i)
		m.Registered(agent, "failing")
		messages := make([]*pb.Message, batch)
		for j := range messages {
			messages[j] = to(agent, fmt.Sprintf("Letter %d", i*batch+j))
		}
		m.send("lead", messages...)
		claims := call(m, agent, pb.NewMessageServiceClient, pb.MessageServiceClient.ClaimMessages,
			&pb.ClaimMessagesRequest{Max: batch}).GetClaims()
		nacks := make([]*pb.Nack, len(claims))
		for j, c := range claims {
			nacks[j] = &pb.Nack{ClaimId: c.GetClaimId(), Fatal: true, Error: "no compiler"}
		}
		if len(nacks) != batch {
			m.t.Fatalf("%s has claimed %d of %d messages", agent, len(nacks), batch)
		}
		call(m, agent, pb.NewMessageServiceClient, pb.MessageServiceClient.NackMessages,
			&pb.NackMessagesRequest{Nacks: nacks})
	}
}

func TestRows_LongListsKeepThePageLiveAndSmall(t *testing.T) {
	t.Parallel()
	longLists(newTeam(t), someRows)
}

func TestLoad_VeryLongListsKeepThePageLiveAndSmall(t *testing.T) {
	loadTime(t)
	longLists(newTeam(t), manyRows)
}

// longLists scrolls each list that can be long to the end, so that it loads what it can show.
func longLists(m *team, rows int) {
	m.t.Helper()
	m.ctx = m.t.Context()
	m.fill(rows)
	m.killMany(rows)
	p := open(m, operator, "attention")
	for _, list := range []struct {
		view, label, total string
		grows              int // how often the list loads more rows, unless it has all that it shows
	}{
		{"timeline", "Events", "", rows / 500},
		{"queues/role:designer", "Messages", fmt.Sprintf("%d,000 wait", rows/1000), 5},
		{"dead", "Dead letters", "10,000 dead letters", 8},
	} {
		p.show(list.view)
		grid := fmt.Sprintf(`one('[role=grid][aria-label="%s"]')`, list.label)
		p.await(`one('[data-row]', `+grid+`) && has(one('[data-view]'), a)`, list.total)
		count := 0
		for range list.grows {
			p.await(`+`+grid+`.ariaRowCount > a || has(one('[data-view]'), 'The list has the newest')`, count)
			p.await(`(` + grid + `.focus(), document.activeElement === ` + grid + `)`)
			count = value[int](p, `+`+grid+`.ariaRowCount`)
			p.keys(kb.End)
			p.await(`+one('.active', `+grid+`)?.ariaRowIndex >= a`, count)
		}
		p.keys(kb.Home)
		p.await(`one('.active', ` + grid + `)?.ariaRowIndex === '2'`)
		p.await(live, m.publish("still live"))
		shown, heap := value[int](p, `all('[data-row]').length`), p.heap()
		m.t.Logf("%s: %d rows, %d of them in the document, and a heap of %.1f MB", list.view, count, shown, heap)
		if shown > mostRows || heap > mostHeap {
			m.t.Errorf("%s: the bounds are %d rows and %d MB", list.view, mostRows, mostHeap)
		}
	}
	p.await(`has(one('[data-view=dead]'), 'The list has the newest')`)
}
