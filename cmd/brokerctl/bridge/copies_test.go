package bridge_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestJSONL_CopiesOfALineAreOneMessage(t *testing.T) {
	t.Parallel()
	line := func(id, to, content, time string) string {
		text := fmt.Sprintf(`{"FromAgentId":"a","ToAgentId":%q,"Type":"Text","Content":%q`, to, content)
		if id != "" {
			text += fmt.Sprintf(`,"MessageId":%q`, id)
		}
		if time != "" {
			text += fmt.Sprintf(`,"Timestamp":%q`, time)
		}
		return text + "}\n"
	}
	const t1, t2 = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
	tests := map[string]struct {
		first, copy string
		sent        int // by a, with the last message
		rejected    int
	}{
		"same id, other time":               {line("1", "lead", "x", t1), line("1", "lead", "x", t2), 2, 0},
		"same id to all, other time":        {line("1", "*", "x", t1), line("1", "*", "x", t2), 2, 0},
		"same id, other recipient":          {line("1", "lead", "x", t1), line("1", "b", "x", t1), 3, 0},
		"same id, other content":            {line("1", "lead", "x", t1), line("1", "lead", "y", t1), 2, 1},
		"no id, same time and content":      {line("", "lead", "x", t1), line("", "lead", "x", t1), 2, 0},
		"no id to all, same time":           {line("", "*", "x", t1), line("", "*", "x", t1), 2, 0},
		"no id, same time, other content":   {line("", "lead", "x", t1), line("", "lead", "y", t1), 3, 0},
		"no id, other time, same content":   {line("", "lead", "x", t1), line("", "lead", "x", t2), 3, 0},
		"neither id nor time, same content": {line("", "lead", "x", ""), line("", "lead", "x", ""), 3, 0},
	}
	for name, test := range tests {
		for _, file := range []string{"lead", "b"} {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, in %s, restart %v", name, file, restart), func(t *testing.T) {
					t.Parallel()
					d := newTeam(t, "jsonl")
					lead := d.broker.Registered("lead", "lead")
					d.empty("a", "b")
					stop := d.start()
					d.awaitAgent("a")
					d.awaitAgent("b")
					d.appendLine("lead", test.first)
					bodies := []string{d.claim(lead, 1)[0].GetBody()}
					if restart {
						stop()
					}
					d.appendLine(file, test.copy)
					d.appendLine(file, line("last", "lead", "last", ""))
					if restart {
						d.start()
					}
					for bodies[len(bodies)-1] != "last" {
						bodies = append(bodies, d.claim(lead, 1)[0].GetBody())
					}
					d.awaitSent("a", test.sent)
					want := []string{"x", "last"}
					if test.sent == 3 && test.copy != line("1", "b", "x", t1) {
						want = []string{"x", object(t, test.copy)["Content"].(string), "last"}
					}
					if diff := cmp.Diff(want, bodies); diff != "" {
						t.Errorf("lead received: %s", diff)
					}
					if names := d.awaitFiles("rejected", 2*test.rejected); test.rejected > 0 && !cmp.Equal(len(names), 2) {
						t.Errorf("rejected: %q", names)
					}
				})
			}
		}
	}
}
