package main

import (
	"strings"
	"testing"
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
		if r := ctl(t, append([]string{"bench"}, args...)...); r.code != exitUsage || !strings.Contains(r.err, args[0]) {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
