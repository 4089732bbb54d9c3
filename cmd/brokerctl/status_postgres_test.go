package main

import (
	"strings"
	"testing"

	"brokerd/internal/app"
	"brokerd/internal/postgrestest"
)

func TestStatus_SaysWhereTheDataIsAndWhatConfirmedMeans(tt *testing.T) {
	t := newShell(tt)
	url := postgrestest.Database(tt)
	startBrokerWith(t, func(c *app.Config) { c.Store, c.Sync = url, "" })
	out := must0(t, "status")
	for _, want := range []string{
		" in postgres://broker@/test_", "confirmed  is in the memory of PostgreSQL's machine: it has fsync = off", "\nfolder     /",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the status lacks %q: %s", want, out)
		}
	}
	if strings.Contains(out, "journal") {
		t.Errorf("the status speaks of SQLite's journal: %s", out)
	}
}
