package main

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/prompt"
)

func FuzzReceiver(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		target, err := command.ParseReceiver(s)
		if err != nil {
			if code, _ := quiet(setting.Environment{}).Explain(err); code != problem.ExitUsage {
				t.Fatalf("%q: exit code %d, %v", s, code, err)
			}
			return
		}
		if back := prompt.Receiver(target); back != s && !target.GetEveryone() {
			t.Fatalf("%q is written back as %q", s, back)
		}
		if again, err := command.ParseReceiver(prompt.Receiver(target)); err != nil || !proto.Equal(again, target) {
			t.Fatalf("%q is read as %v, and then as %v: %v", s, target, again, err)
		}
	})
}
