package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

func TestReceiver_OneGrammar(t *testing.T) {
	for in, want := range map[string]*pb.Target{
		"builder-1":       {To: &pb.Target_Agent{Agent: "builder-1"}},
		"team:builder-1":  {To: &pb.Target_Agent{Agent: "team:builder-1"}},
		"role":            {To: &pb.Target_Agent{Agent: "role"}},
		"role:builder":    {To: &pb.Target_Role{Role: "builder"}},
		"role:a:b":        {To: &pb.Target_Role{Role: "a:b"}},
		"channel:general": {To: &pb.Target_Channel{Channel: "general"}},
		"channel:event/x": {To: &pb.Target_Channel{Channel: "event/x"}},
		"builder-*":       {To: &pb.Target_Pattern{Pattern: "builder-*"}},
		"all_builders":    {To: &pb.Target_Agent{Agent: "all_builders"}},
		"team:?":          {To: &pb.Target_Pattern{Pattern: "team:?"}},
		"everyone":        {To: &pb.Target_Everyone{Everyone: true}},
	} {
		got, err := command.ParseReceiver(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%q: (-want +got)\n%s", in, diff)
		}
		if back := prompt.Receiver(got); back != in {
			t.Errorf("%q is written back as %q", in, back)
		}
	}
}

func TestReceiver_SeveralWordsMeanEveryone(t *testing.T) {
	for _, in := range []string{"everyone", "all", "ALL", "*"} {
		if got, err := command.ParseReceiver(in); err != nil || !got.GetEveryone() {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
}

func TestReceiver_WhatCannotBeMeantIsAUsageError(t *testing.T) {
	for _, in := range []string{"", "role:", "channel:", "role:b*", "channel:b?"} {
		_, err := command.ParseReceiver(in)
		if code, _ := quiet(setting.Environment{}).Explain(err); err == nil || code != problem.ExitUsage {
			t.Errorf("%q: code %d, %v", in, code, err)
		}
	}
}
