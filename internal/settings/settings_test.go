package settings_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/settings"
	"brokerd/internal/validate"
)

func TestAll_HasEveryFieldInOrder(t *testing.T) {
	t.Parallel()
	fields := (&pb.SessionSettings{}).ProtoReflect().Descriptor().Fields()
	if len(settings.All) != fields.Len() {
		t.Fatalf("%d settings of %d fields", len(settings.All), fields.Len())
	}
	for i, s := range settings.All {
		if s.Field != fields.Get(i) {
			t.Errorf("setting %d is %s; want %s", i, s.Field.Name(), fields.Get(i).Name())
		}
	}
}

func TestDefault_IsWithinTheLimits(t *testing.T) {
	t.Parallel()
	var c validate.Check
	settings.Check(&c, settings.Default())
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

func TestParse_WhatIsNotStoredHasItsDefault(t *testing.T) {
	t.Parallel()
	stored, err := proto.Marshal(&pb.SessionSettings{StaleAfter: durationpb.New(0), Directors: &pb.Names{}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := settings.Parse(stored)
	want := proto.CloneOf(settings.Default())
	want.StaleAfter, want.Directors = durationpb.New(0), &pb.Names{}
	if err != nil || !proto.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

func TestWith_KeepsNoFieldThatTheBrokerDoesNotKnow(t *testing.T) {
	t.Parallel()
	unknown := []byte{0xfa, 0x3f, 1, 'x'} // field 1023
	change := &pb.SessionSettings{Ageing: durationpb.New(time.Hour), Directors: &pb.Names{}}
	for _, m := range []proto.Message{change, change.Ageing, change.Directors} {
		m.ProtoReflect().SetUnknown(unknown)
	}
	got := settings.With(settings.Default(), change)
	want := proto.CloneOf(settings.Default())
	want.Ageing, want.Directors = durationpb.New(time.Hour), &pb.Names{}
	if !proto.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
	if !proto.Equal(settings.With(got, nil), got) {
		t.Error("no change changes settings")
	}
}
