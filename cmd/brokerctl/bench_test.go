package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"brokerd/cmd/brokerctl/bench"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
)

func TestBench_PrintsOneLineAWorkload(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	r := fields(t, "bench", "--workloads", "pipelined", "--seconds", "0.1", "--size", "64", "-o", "json")
	if r["workload"] != "pipelined" {
		t.Errorf("%v", r)
	}
	for _, name := range []string{"rounds", "count", "seconds", "per_second", "p50_ms", "p95_ms", "p99_ms", "broker_cpu_us", "broker_memory_bytes"} {
		if n := r[name].(interface{ String() string }); n.String() == "0" {
			t.Errorf("%s is 0", name)
		}
	}
	table := strings.Split(strings.TrimSpace(must0(t, "bench", "--workloads", "agents,paced", "--seconds", "0.1")), "\n")
	if len(table) != 3 || !strings.HasPrefix(table[1], "agents ") || !strings.HasPrefix(table[2], "paced ") {
		t.Errorf("%q", table)
	}
}

func TestBench_OptionsThatCannotBeMeantAreUsageErrors(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	for _, args := range [][]string{
		{"--workloads", "nonsense"}, {"--seconds", "0"}, {"--rounds", "0"}, {"--size", "17"}, {"--preload", "-1"},
		{"--held", "-1"}, {"--changes", "0"}, {"--watchers", "-1"}, {"--finished", "-1"}, {"--waiting", "-1"},
	} {
		if r := ctl(t, append([]string{"bench"}, args...)...); r.code != problem.ExitUsage || !strings.Contains(r.err, args[0]) {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// With --store, a broker on SQLite and one on PostgreSQL take turns.
func TestBench_ComparesTheStores(tt *testing.T) {
	t := newShell(tt)
	url := postgrestest.Database(tt)
	brokerd := processtest.Build(t)
	isolate(t)
	var said strings.Builder
	run := func() ([]byte, error) {
		cmd := t.command(os.Args[0], "bench", "--folder", t.TempDir(), "--store", url, "--workloads", "pipelined",
			"--seconds", "0.1", "--size", "64", "-o", "json")
		cmd.Env = append(program(t), "PATH="+filepath.Dir(brokerd)+":"+t.Getenv("PATH"))
		cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "BROKERD_DATA=") })
		cmd.Stderr = &said
		return cmd.Output()
	}
	out, err := run()
	if err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	var measured []bench.Measurement
	for lines := json.NewDecoder(bytes.NewReader(out)); lines.More(); {
		var m bench.Measurement
		apptest.NoError(t, lines.Decode(&m))
		measured = append(measured, m)
	}
	if len(measured) != 2 || measured[0].Broker != "sqlite" || measured[1].Broker != "postgres" {
		t.Fatalf("%s", out)
	}
	for _, m := range measured {
		if ratio := m.PerSecond / measured[0].PerSecond; m.Count == 0 || m.Ratio != ratio {
			t.Errorf("%+v, want the ratio %v", m, ratio)
		}
	}
	if !strings.Contains(said.String(), "on the primary's disk") && !strings.Contains(said.String(), "fsync") {
		t.Errorf("no warning of the broker on PostgreSQL: %s", said.String())
	}

	// A database in which only benchmarks have run is good for another one; one in which others work is left alone.
	db, err := pgx.Connect(t.Context(), url)
	apptest.NoError(t, err)
	defer func() { apptest.NoError(t, db.Close(context.Background())) }()
	for _, others := range []string{
		`SELECT 1`,
		`UPDATE agents SET registered = 1, session = (SELECT id FROM sessions WHERE name = 'default')
			WHERE id = (SELECT min(id) FROM agents)`,
		`DELETE FROM agents; UPDATE sessions SET description = 'ours'`,
	} {
		_, err = db.Exec(t.Context(), others)
		apptest.NoError(t, err)
		said.Reset()
		_, err := run()
		if refused := err != nil && strings.Contains(said.String(), "name a database of its own"); refused != (others != `SELECT 1`) {
			t.Errorf("after %s: %v: %s", others, err, said.String())
		}
	}
}

func TestBench_LeavesTheUsersBrokerAlone(tt *testing.T) {
	t := newShell(tt)
	brokerd := processtest.Build(t)
	isolate(t)
	folder := t.TempDir()
	cmd := t.command(os.Args[0], "bench", "--folder", folder, "--workloads", "pipelined", "--seconds", "0.1", "--size", "64")
	cmd.Env = append(program(t), "PATH="+filepath.Dir(brokerd)+":"+t.Getenv("PATH"))
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "BROKERD_DATA=") })
	secret := filepath.Join(t.TempDir(), "secret") // of another broker
	apptest.NoError(t, os.WriteFile(secret, []byte(strings.Repeat("x", 43)), 0o600))
	cmd.Env = append(cmd.Env, "BROKERD_CREDENTIAL_FILE="+secret, "BROKERD_AGENT=builder-1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\npipelined ") {
		t.Fatalf("%v: %s", err, out)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
