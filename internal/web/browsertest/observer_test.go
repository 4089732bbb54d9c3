package browsertest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// calls matches the RPCs that the scripts of the page name.
var calls = regexp.MustCompile(`\b([A-Z][a-z]+Service/)(\w+)`)

func TestObserver_MayNotMakeTheCallsOfTheButtons(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	p := open(m, observer, "attention")
	changes := []string{"MessageService/SendMessages", "TaskService/RetryTask", "DecisionService/Decide", "VoteService/CastVote"}
	err := filepath.WalkDir("../ui", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".js" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, name := range calls.FindAllStringSubmatch(string(text), -1) {
			if !reads.MatchString(name[2]) {
				changes = append(changes, name[0])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(changes)
	for _, name := range slices.Compact(changes) {
		got := value[string](p, `(await import('/ui/lib/api.js')).rpc(a, {}).then(() => 'done', (e) => e.status + ' ' + e.code)`, name)
		if got != "403 denied" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// reads matches the names of RPCs that change nothing.
var reads = regexp.MustCompile(`^(Get|List|Explain|WatchOverview)`)

func TestObserver_SeesTheFindingsAboutAnAgent(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.work()
	p := open(m, observer, "team/builder-1")
	p.await(`has(one('.panel .attention-finding'), '3 dead letters')`)
	if n := value[int](p, `all('.panel .action').length`); n > 0 {
		t.Errorf("the panel has %d buttons", n)
	}
	p.show("team/reviewer")
	p.await(`has(one('.panel .facts'), 'reviewer') && !one('.panel .attention-finding')`)
}
