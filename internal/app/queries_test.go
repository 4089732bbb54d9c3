package app_test

import (
	"database/sql"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// scans are the statements that may read a whole table, or a whole index, which can grow: by
// package and constant, with the reason. What is not named here goes by an index to the rows that
// it needs.
var scans = map[string]string{
	"agents.selectLeases":            "once, at the start",
	"archive.selectChannelsKept":     "channels with their own retention; retention reads them once a run",
	"archive.selectLeftover":         "its LIMIT ends it",
	"artifacts.allContents":          "CheckDatabase",
	"artifacts.invariants":           "CheckDatabase",
	"artifacts.wrongChunks":          "CheckDatabase",
	"auth.selectAll":                 "once, at the start; at most 20,000 credentials",
	"backlog.deleteDepartures":       "departures that are not finished alone, when a session closes",
	"admission.selectGated":          "halted agents and open breakers alone",
	"admission.selectOpenBreakers":   "once, at the start; agents that have failed alone",
	"backlog.selectRanked":           "when the ageing changes; claims are as many as agents work on",
	"backlog.selectReranks":          "once, at the start; changes that are not finished alone",
	"broker.selectRunningClaims":     "once, at the start; claims are as many as agents work on",
	"deadletters.selectDepartures":   "once, at the start; departures that are not finished alone",
	"diagnose.countClaimsOfAgents":   "claims are as many as agents work on",
	"diagnose.countWaitingOfChannel": "its LIMIT ends it",
	"diagnose.selectGatesOf":         "halted agents and open breakers alone",
	"diagnose.selectLastOfChannel":   "its LIMIT ends it",
	"diagnose.selectStatus":          "claims are as many as agents work on",
	"diagnose.sumStatus":             "claims are as many as agents work on",
	"directory.countSessions":        "one row per session",
	"directory.selectOpen":           "one row per session",
	"directory.selectSessionNames":   "one row per session",
	"events.countEvents":             "CheckDatabase",
	"events.invariants":              "CheckDatabase",
	"events.selectPublished":         "its LIMIT ends it",
	"gauges.countClaimedByKind":      "claims are as many as agents work on",
	"gauges.countDead":               "its LIMIT ends it",
	"gauges.countTotals":             "CheckDatabase",
	"gauges.invariants":              "CheckDatabase",
	"gauges.selectClaimsHeld":        "during a drain; claims are as many as agents work on",
	"gauges.selectGauges":            "one row per mailbox, for the metrics",
	"inbox.boxesByAge":               "one row per mailbox; claims are as many as agents work on",
	"inbox.boxesByWaiting":           "one row per mailbox; claims are as many as agents work on",
	"locks.checkPaths":               "CheckDatabase",
	"locks.countAll":                 "waiting tickets alone, of which there are few",
	"locks.restartHolds":             "once, at the start",
	"locks.selectClosings":           "once, at the start; closed sessions that still have locks alone",
	"locks.selectOwnedCounts":        "once, at the start",
	"locks.selectRunning":            "once, at the start",
	"locks.selectSpots":              "once, at the start",
	"locks.selectTickets":            "waiting tickets alone; their queue is kept in memory",
	"locks.selectWaiting":            "once, at the start",
	"idempotency.deleteOldest":       "its LIMIT ends it",
	"retention.selectDeletions":      "deletions of sessions that are not finished alone",
	"sessions.listAll":               "one row per session",
	"state.invariants":               "CheckDatabase",
	"state.sumVersions":              "in a snapshot at the start, to bound the history of keys",
	"store.checkBefore":              "one row per table, once at the start",
	"store.gapsOf":                   "once, at the start; one row per restore",
	"store.missing":                  "one row per migration",
	"store.tables":                   "one row per table",
	"tasks.countUnfinished":          "once, at the start; unfinished tasks alone",
	"tasks.invariants":               "CheckDatabase",
	"tasks.selectClaimsHeld":         "during a drain; tasks that agents hold alone",
	"work.checkItems":                "CheckDatabase",
	"work.checkParts":                "CheckDatabase",
}

// Parts of the plans of statements that read events and messages in the order of their revisions, up to a limit.
const (
	merged     = "MERGE (UNION ALL)\nLEFT\n"
	byRevision = " USING INTEGER PRIMARY KEY ("
	inOrder    = merged + "SEARCH events" + byRevision
	either     = "SUBQUERY\nSEARCH events" + byRevision
)

// ways are parts that the plan of a statement must have, where the statement leaves SQLite a choice: the index
// by which it reads deliveries, the order in which it reads mailboxes, or whether it sorts events.
var ways = map[string][]string{
	"backlog.selectClosedClaims":   {"SEARCH b USING INTEGER PRIMARY KEY (rowid>?)", "deliveries_claimed (holder=?)"},
	"backlog.selectClosedDelayed":  {"SEARCH b USING INTEGER PRIMARY KEY (rowid>?)", "deliveries_delayed (mailbox=?)"},
	"backlog.selectClosedNotices":  {"SEARCH b USING INTEGER PRIMARY KEY (rowid>?)", "deliveries_notices (mailbox=?)"},
	"backlog.selectClosedBlocked":  {"SEARCH b USING INTEGER PRIMARY KEY (rowid>?)", "deliveries_blocked (mailbox=?"},
	"backlog.selectClosedReady":    {"SEARCH b USING INTEGER PRIMARY KEY (rowid>?)", "deliveries_ready (mailbox=?)"},
	"broker.selectExpired":         {"deliveries_expiring (expires_at<?)"},
	"backlog.selectRanked":         {"deliveries_claimed", "deliveries_ready", "deliveries_delayed", "deliveries_blocked"},
	"diagnose.countClaimsOfAgents": {"deliveries_claimed"},
	"diagnose.selectLongClaims":    {"deliveries_claimed"},
	"diagnose.selectStatus":        {"deliveries_claimed"},
	"diagnose.sumStatus":           {"deliveries_claimed"},
	"events.firstAfter":            {either + "rowid>?)\nUNION ALL\nSEARCH messages" + byRevision + "rowid>?)"},
	"events.lastUntil":             {either + "rowid<?)\nUNION ALL\nSEARCH messages" + byRevision + "rowid<?)"},
	"events.newestMatching":        {inOrder, "RIGHT\nSEARCH m" + byRevision},
	"events.oldestKept":            {either + "rowid>?)\nUNION ALL\nSEARCH messages" + byRevision + "rowid>?)"},
	"events.oldestMatching":        {inOrder, "RIGHT\nSEARCH m" + byRevision},
	"events.selectAfter":           {inOrder + "rowid>? AND rowid<?)\nRIGHT\nSEARCH m" + byRevision},
	"events.selectOfTask":          {merged, "INDEX events_task", "INDEX messages_task (task=? AND rowid>?)"},
	"gauges.countClaimedByKind":    {"deliveries_claimed"},
	"gauges.countDead":             {"deliveries_dead"},
	"gauges.selectGauges":          {"deliveries_arrival", "deliveries_ready"},
	"gauges.selectOldest":          {"deliveries_arrival", "deliveries_ready"},
	"inbox.boxesByAge":             {"deliveries_claimed", "deliveries_arrival", "deliveries_ready"},
	"inbox.boxesByWaiting":         {"deliveries_claimed", "deliveries_arrival", "deliveries_ready"},
}

var (
	statement = regexp.MustCompile(`(?s)^\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\s.*\s`)
	argument  = regexp.MustCompile(`\?\d*`)
	computed  = regexp.MustCompile(`^(?:CO-ROUTINE|MATERIALIZE) (\S+)`)
	scan      = regexp.MustCompile(`^SCAN (\S+)`)
)

// TestQueries_NoStatementReadsAGrowingTableUnnamed has SQLite explain every statement in the source
// of every package. It finds them as constant strings, so that new ones are covered.
func TestQueries_NoStatementReadsAGrowingTableUnnamed(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "another test checks PostgreSQL's plans")
	b := apptest.Start(t)
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(b.Dir(), "brokerd.db")+"?mode=ro")
	apptest.NoError(t, err)
	defer func() { _ = db.Close() }()
	used, planned := map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob("../*")
	apptest.NoError(t, err)
	total, exported := 0, exportedParts(t)
	for _, dir := range files {
		for _, q := range readSource(t, dir, exported).statements {
			plan, err := explain(db, q.text)
			if err != nil {
				t.Errorf("%s: %v", q.name, err)
			}
			total++
			planned[q.name] = true
			for _, way := range ways[q.name] {
				if all := strings.Join(plan, "\n"); !strings.Contains(all, way) {
					t.Errorf("%s: the plan lacks %s:\n%s", q.name, way, all)
				}
			}
			for _, step := range scanned(plan) {
				used[q.name] = true
				if scans[q.name] == "" {
					t.Errorf("%s: %s", q.name, step)
				}
			}
		}
	}
	for name := range scans {
		if !used[name] {
			t.Errorf("%s is named but scans nothing", name)
		}
	}
	for name := range ways {
		if !planned[name] {
			t.Errorf("%s is named but does not exist", name)
		}
	}
	if total < 300 {
		t.Errorf("only %d statements were found", total)
	}
}

// explain returns the steps of a statement's plan.
func explain(db *sql.DB, text string) ([]string, error) {
	rows, err := db.Query(`EXPLAIN QUERY PLAN ` + argument.ReplaceAllString(text, "1"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var steps []string
	for rows.Next() {
		var id, parent, unused int
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, rows.Err()
}

// scanned returns the steps of a plan that read a whole table or index, other than the one row about the
// database.
func scanned(steps []string) []string {
	var found []string
	within := map[string]bool{} // subqueries
	for _, step := range steps {
		if m := computed.FindStringSubmatch(step); m != nil {
			within[m[1]] = true
		}
		m := scan.FindStringSubmatch(step)
		if m != nil && !within[m[1]] && !strings.Contains(step, "CONSTANT ROW") && m[1] != "meta" && m[1] != "sqlite_master" && !strings.Contains(step, "VIRTUAL TABLE") {
			found = append(found, step)
		}
	}
	return found
}

// A source is the source of one package.
type source struct {
	constants  map[string]ast.Expr
	parts      map[string]bool // constants that are parts of others
	statements []query
	exported   map[string]source // the packages that export parts of statements, by name
}

// A query is a statement with the name of its constant, variable or function.
type query struct{ name, text string }

// exportedParts reads the packages that export parts of statements.
func exportedParts(t *testing.T) map[string]source {
	t.Helper()
	return map[string]source{"broker": readSource(t, "../broker", nil), "mail": readSource(t, "../mail", nil)}
}

// readSource reads the source of a package. exported has the packages that export parts of statements.
func readSource(t *testing.T, dir string, exported map[string]source) source {
	t.Helper()
	s := source{constants: map[string]ast.Expr{}, parts: map[string]bool{}, exported: exported}
	if name := filepath.Base(dir); name == "testkit" || name == "postgrestest" {
		return s // for tests alone
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	apptest.NoError(t, err)
	var files []*ast.File
	for _, path := range paths {
		// The statements of migrations are for tables of earlier versions.
		if strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "migrations.go" {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		apptest.NoError(t, err)
		files = append(files, file)
		ast.Inspect(file, s.declare)
	}
	for _, file := range files {
		for _, d := range file.Decls {
			s.collect(filepath.Base(dir), d)
		}
	}
	return s
}

// declare notes constants and variables, and the constants that they consist of.
func (s *source) declare(n ast.Node) bool {
	v, ok := n.(*ast.ValueSpec)
	if !ok {
		return true
	}
	for i, value := range v.Values {
		s.constants[v.Names[i].Name] = value
		ast.Inspect(value, func(n ast.Node) bool {
			if e, ok := n.(*ast.BinaryExpr); ok {
				for _, side := range []ast.Expr{e.X, e.Y} {
					if name, ok := side.(*ast.Ident); ok {
						s.parts[name.Name] = true
					}
				}
			}
			return true
		})
	}
	return true
}

// collect adds the statements of a declaration.
func (s *source) collect(pkg string, d ast.Decl) {
	name := ""
	f, within := d.(*ast.FuncDecl)
	if within {
		name = f.Name.Name
	}
	ast.Inspect(d, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && !within {
			name = v.Names[0].Name
		}
		if _, ok := n.(*ast.Ident); ok {
			return false // its own declaration has it
		}
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		text, ok := s.text(e)
		if ok && statement.MatchString(text) && !strings.Contains(text, "%s") && !s.parts[name] {
			s.statements = append(s.statements, query{pkg + "." + name, text})
		}
		return !ok
	})
}

// text returns the value of a constant string.
func (s *source) text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.Ident:
		if value, ok := s.constants[e.Name]; ok {
			return s.text(value)
		}
	case *ast.SelectorExpr:
		if name, ok := e.X.(*ast.Ident); ok {
			from := s.exported[name.Name]
			return from.text(e.Sel)
		}
	case *ast.BinaryExpr:
		x, ok := s.text(e.X)
		y, also := s.text(e.Y)
		return x + y, ok && also && e.Op == token.ADD
	}
	return "", false
}
