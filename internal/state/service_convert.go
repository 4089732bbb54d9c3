package state

import (
	"cmp"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/validate"
)

// A request is one of a change.
type request interface {
	proto.Message
	GetRequestId() string
}

// nameOf reads a key's name.
func nameOf(in interface {
	GetNamespace() string
	GetKey() string
}) Name {
	return Name{cmp.Or(in.GetNamespace(), Default), in.GetKey()}
}

// putOf reads a value to write. The path is that of the value.
func putOf(c *validate.Check, path string, in *pb.PutStateRequest) Change {
	return Change{
		Name: nameOf(in), Compare: in.CompareRevision, Own: in.Own, Task: in.TaskId, Value: valueOf(c, path, in.GetValue()),
		TTL: in.GetTtl().AsDuration(),
	}
}

// deletionOf reads a deletion.
func deletionOf(in *pb.DeleteStateRequest) Change {
	return Change{Name: nameOf(in), Compare: in.CompareRevision, Delete: true}
}

// valueOf reads a value, which must be set.
func valueOf(c *validate.Check, path string, in *pb.StateValue) Value {
	switch v := in.GetValue().(type) {
	case *pb.StateValue_StringValue:
		return Value{String, v.StringValue}
	case *pb.StateValue_IntegerValue:
		return Value{Integer, strconv.FormatInt(v.IntegerValue, 10)}
	case *pb.StateValue_BooleanValue:
		return Value{Boolean, strconv.FormatBool(v.BooleanValue)}
	case *pb.StateValue_JsonValue:
		return Value{JSON, v.JsonValue}
	}
	c.Fail(path, "is missing: set one of string_value, integer_value, boolean_value, json_value")
	return Value{}
}

// transactionOf reads compares and changes.
func transactionOf(c *validate.Check, in *pb.TransactStateRequest) (compares []Compare, changes []Change) {
	for _, compare := range in.GetCompares() {
		compares = append(compares, Compare{nameOf(compare), compare.GetRevision()})
	}
	seen := make(map[Name]bool, len(in.GetChanges()))
	bytes := 0
	for i, change := range in.GetChanges() {
		var ch Change
		path, id := fmt.Sprintf("changes[%d].", i), ""
		switch {
		case change.GetPut() != nil:
			path += "put."
			ch, id = putOf(c, path+"value", change.GetPut()), change.GetPut().GetRequestId()
		case change.GetDelete() != nil:
			path += "delete."
			ch, id = deletionOf(change.GetDelete()), change.GetDelete().GetRequestId()
		default:
			c.Fail(path[:len(path)-1], "is empty: set put or delete")
			continue
		}
		if id != "" {
			c.Fail(path+"request_id", "must be empty: the transaction has one")
		}
		if seen[ch.Name] {
			c.Fail(path+"key", "is that of an earlier change: each key at most once")
		}
		seen[ch.Name] = true
		bytes += len(ch.Namespace) + len(ch.Key) + len(ch.Value.Text) + len(change.GetPut().GetTaskId())
		changes = append(changes, ch)
	}
	if bytes > maxTogether {
		c.Fail("changes", "have %d bytes of names and values together; at most %d are allowed", bytes, maxTogether)
	}
	return compares, changes
}

func entriesProto(list []Entry, values bool) []*pb.StateEntry {
	out := make([]*pb.StateEntry, len(list))
	for i := range list {
		out[i] = entryProto(&list[i], values)
	}
	return out
}

func entryProto(e *Entry, value bool) *pb.StateEntry {
	out := &pb.StateEntry{
		Namespace: e.Namespace, Key: e.Key, Type: pb.StateType(e.Type), Version: e.Version, Revision: e.Revision, Author: e.Author,
		Owner: e.Owner, TaskId: e.TaskID, Deleted: e.Deleted, Entries: int32(e.Entries), Contributors: e.Contributors,
	}
	if !e.ChangedAt.IsZero() {
		out.ChangedAt, out.CreatedAt = timestamppb.New(e.ChangedAt), timestamppb.New(e.CreatedAt)
	}
	if !e.ExpiresAt.IsZero() {
		out.ExpiresAt = timestamppb.New(e.ExpiresAt)
	}
	if e.Appended != nil {
		out.Appended = sectionProto(e.Appended)
	}
	if value && !e.Deleted {
		out.Value = valueProto(e)
	}
	return out
}

func valueProto(e *Entry) *pb.StateValue {
	switch e.Type {
	case String:
		return &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: e.Value}}
	case Integer:
		n, _ := strconv.ParseInt(e.Value, 10, 64) // it was written from a number
		return &pb.StateValue{Value: &pb.StateValue_IntegerValue{IntegerValue: n}}
	case Boolean:
		return &pb.StateValue{Value: &pb.StateValue_BooleanValue{BooleanValue: e.Value == "true"}}
	case JSON:
		return &pb.StateValue{Value: &pb.StateValue_JsonValue{JsonValue: e.Value}}
	}
	return nil
}

func sectionProto(s *Section) *pb.DocumentEntry {
	return &pb.DocumentEntry{
		Number: int32(s.Number), Author: s.Author, CreatedAt: timestamppb.New(s.At), Text: s.Text, Revision: s.Revision, TaskId: s.TaskID,
	}
}
