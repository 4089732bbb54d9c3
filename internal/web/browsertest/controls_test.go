package browsertest

import "testing"

func TestTimeline_HoldStopsTheListAndCountsTheNewEvents(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.publish("before the hold")
	p := open(m, operator, "timeline")
	p.await(`row('before the hold')`)
	p.act(`document`, "hold")
	p.await(`has(one('[data-action=hold][aria-pressed=true]'), 'Held')`)
	p.await(live, m.publish("while it is held"))
	p.await(`has(one('[data-action=hold]'), 'Held, 1 new')`)
	if value[bool](p, `!!row('while it is held')`) {
		t.Error("the held list has a new row")
	}
	p.act(`document`, "hold")
	p.await(`row('while it is held') && one('[data-action=hold][aria-pressed=false]')`)
}

func TestViews_ControlsChooseWhatIsShown(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.work()
	p := open(m, operator, "conversations")
	p.await(`row('The login form is complete')`)
	p.await(`press(one('[data-filter=unanswered]'))`)
	p.await(`!row('The login form is complete') && row('bcrypt or argon2id?')`)

	p.show("queues")
	const first = `has(one('[data-view] [data-row]'), a)`
	m.send("lead", toRole("tester", "One"), toRole("tester", "Two"), toRole("tester", "Three"), toRole("tester", "Four"))
	p.await(`row('role:tester') && !`+first, "role:tester") // has the newest messages
	p.await(`press(all('[role=columnheader] button').find((b) => has(b, 'Waiting')))`)
	p.await(`one('[aria-sort]').textContent.startsWith('Waiting') && `+first, "role:tester") // and the most

	p.show("timeline")
	p.await(`reach('agent.joined') || row('message.sent')`)
	p.await(`fill(one('[aria-label="Lowest severity"]'), 'warning')`)
	p.await(`!row('message.sent') && row('blocker.encountered')`)

	p.show("work")
	p.await(`one('.work-graph') && row('Serve the API')`)
	p.act(`document`, "graph")
	p.await(`!one('.work-graph')`)
	p.await(`fill(one('[aria-label="Tasks to show"]'), 'done')`)
	p.await(`row('Write the schema') && !row('Serve the API')`)
}

func TestViews_FramesDoNotChangeWhatIsTyped(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.kill("builder-1", "Port the importer", "no such repository")
	p := open(m, operator, "timeline")
	for _, field := range []string{`one('[aria-label="Types"]')`, `one('[data-filter="error"]')`, `one('.jump input')`} {
		if field == `one('[data-filter="error"]')` {
			p.show("dead")
		}
		p.await(field)
		p.tabTo(field)
		p.keys("half")
		p.await(live, m.publish("another event"))
		p.keys(" text")
		p.await(field + `.value === 'half text'`)
	}
}
