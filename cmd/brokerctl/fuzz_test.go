package main

import (
	"testing"

	"brokerd/internal/prompt"

	"google.golang.org/protobuf/proto"
)

func FuzzReceiver(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		target, err := parseReceiver(s)
		if err != nil {
			if code, _ := (&cli{ran: true}).explain(err); code != exitUsage {
				t.Fatalf("%q: exit code %d, %v", s, code, err)
			}
			return
		}
		if back := prompt.Receiver(target); back != s && !target.GetEveryone() {
			t.Fatalf("%q is written back as %q", s, back)
		}
		if again, err := parseReceiver(prompt.Receiver(target)); err != nil || !proto.Equal(again, target) {
			t.Fatalf("%q is read as %v, and then as %v: %v", s, target, again, err)
		}
	})
}
