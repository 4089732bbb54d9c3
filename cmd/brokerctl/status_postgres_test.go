package main

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
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

func TestExplain_SaysThatCommitsTakeLong(tt *testing.T) {
	t := newShell(tt)
	url := postgrestest.Database(tt)
	startBrokerWith(t, func(c *app.Config) { c.Store, c.Sync = url, "" })
	db, err := pgx.Connect(t.Context(), url)
	apptest.NoError(t, err)
	defer func() { apptest.NoError(t, db.Close(context.Background())) }()
	_, err = db.Exec(t.Context(), `
		CREATE FUNCTION wait() RETURNS TRIGGER LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(4); RETURN NEW; END';
		CREATE TRIGGER slow BEFORE UPDATE ON meta FOR EACH ROW EXECUTE FUNCTION wait()`)
	apptest.NoError(t, err)
	must0(t, "session", "configure", "--send-rate", "0")
	out := must0(t, "explain")
	for _, want := range []string{
		"the last commits took ", "s on average (a warning from 250ms on); each change waits for one",
		"the data is in postgres://broker@", "a confirmed change is in the memory of PostgreSQL's machine",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the explanation lacks %q: %s", want, out)
		}
	}
}
