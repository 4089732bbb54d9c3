package table_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"brokerd/cmd/brokerctl/table"
)

var columns = []table.Column{
	{Name: "REV"}, {Name: "SENT", Rank: 2}, {Name: "EMPTY"}, {Name: "STATE", Rank: 1, State: true}, {Name: "SUBJECT", Min: 10}, {Name: "ID", Wide: true},
}

func written(t *testing.T, s table.Screen, rows ...[]string) string {
	t.Helper()
	all := table.New(s, columns...)
	for _, row := range rows {
		all.Row(row...)
	}
	var b strings.Builder
	if err := all.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func want(t *testing.T, got, want string) {
	t.Helper()
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestTable_DropsColumnsByRankAndThenClipsText(t *testing.T) {
	rows := [][]string{{"1", "3m ago", "", "dead", "Add a login page", "id-1"}, {"12", "", "", "new", "東京 is wide", "id-2"}}
	for _, c := range []struct {
		screen table.Screen
		want   string
	}{
		{table.Screen{}, `
REV  SENT    STATE  SUBJECT
1    3m ago  dead   Add a login page
12   -       new    東京 is wide
`},
		{table.Screen{Width: 33}, `
REV  SENT    STATE  SUBJECT
1    3m ago  dead   Add a login …
12   -       new    東京 is wide
`},
		{table.Screen{Width: 29}, `
REV  STATE  SUBJECT
1    dead   Add a login page
12   new    東京 is wide
`},
		{table.Screen{Width: 16}, `
REV  SUBJECT
1    Add a logi…
12   東京 is wi…
`},
		{table.Screen{Width: 33, Wide: true}, `
REV  SENT    EMPTY  STATE  SUBJECT           ID
1    3m ago  -      dead   Add a login page  id-1
12   -       -      new    東京 is wide      id-2
`},
		{table.Screen{Width: 29, Color: true}, `
REV  STATE  SUBJECT
1    ` + "\x1b[31mdead\x1b[0m" + `   Add a login page
12   new    東京 is wide
`},
	} {
		want(t, written(t, c.screen, rows...), c.want)
	}
}

func TestStream_HasTheSameColumnsBeforeItsRowsAreKnown(t *testing.T) {
	var b strings.Builder
	s := table.NewStream(&b, table.Screen{Width: 30}, table.Column{Name: "REV", Typical: 4}, table.Column{Name: "FROM", Typical: 6, Min: 4}, table.Column{Name: "SUBJECT", Min: 10})
	for _, row := range [][]string{{"1", "lead", "Add a login page, please"}, {"1234567", "builder-1", "short"}} {
		if err := s.Row(row...); err != nil {
			t.Fatal(err)
		}
	}
	want(t, b.String(), `
REV   FROM    SUBJECT
1     lead    Add a login pag…
1234567  build…  short
`)
}

func TestTable_NoRowIsWiderThanTheScreen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var columns []table.Column
		for range rapid.IntRange(1, 6).Draw(t, "columns") {
			columns = append(columns, table.Column{
				Name: rapid.StringMatching(`[A-Z]{1,8}`).Draw(t, "name"), Rank: rapid.IntRange(0, 3).Draw(t, "rank"),
				Min: rapid.IntRange(0, 12).Draw(t, "min"), Typical: rapid.IntRange(0, 12).Draw(t, "typical"),
			})
		}
		screen := table.Screen{Width: rapid.IntRange(1, 60).Draw(t, "width")}
		all := table.New(screen, columns...)
		var b strings.Builder
		stream := table.NewStream(&b, screen, columns...)
		for range rapid.IntRange(1, 4).Draw(t, "rows") {
			row := rapid.SliceOfN(rapid.StringMatching(`[a-z東é ]{0,30}`), len(columns), len(columns)).Draw(t, "row")
			all.Row(row...)
			if err := stream.Row(row...); err != nil {
				t.Fatal(err)
			}
		}
		if err := all.Write(&b); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := table.Width(strings.TrimSuffix(line, "\n")); n > screen.Width {
				t.Fatalf("%d cells on a screen of %d: %q", n, screen.Width, line)
			}
		}
	})
}

func TestLabels_WrapTheirValues(t *testing.T) {
	l := table.NewLabels(table.Screen{Width: 24, Color: true})
	l.Add("agent", "builder-1")
	l.AddState("health", "failed")
	l.Add("description", "builds the pages")
	var b strings.Builder
	if err := l.Write(&b); err != nil {
		t.Fatal(err)
	}
	want(t, b.String(), `
agent        builder-1
health       `+"\x1b[31mfailed\x1b[0m"+`
description  builds the
             pages
`)
}

func TestWidth_CountsCells(t *testing.T) {
	for s, n := range map[string]int{"": 0, "abc": 3, "é": 1, "e\u0301": 1, "東京": 4, "🙂": 2, "ｱ": 1, "a\u200bb": 2} {
		if got := table.Width(s); got != n {
			t.Errorf("%q: %d, want %d", s, got, n)
		}
	}
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"東京都", 4, "東…"}, {"東京都", 5, "東京…"}, {"abc", 1, "…"}, {"abc", 0, ""}} {
		if got := table.Clip(c.s, c.n); got != c.want {
			t.Errorf("%q in %d: %q, want %q", c.s, c.n, got, c.want)
		}
	}
}
