package state

import (
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

// nameOf reads a key's name. The prefix is the path to the fields.
func nameOf(c *validate.Check, path string, in interface {
	GetNamespace() string
	GetKey() string
}) Name {
	n := Name{in.GetNamespace(), in.GetKey()}
	if n.Namespace == "" {
		n.Namespace = Default
	}
	c.Name(path+"namespace", n.Namespace)
	if n.Key == "" {
		c.Fail(path+"key", "is empty; 1 to %d bytes are required", maxKey)
	}
	c.Line(path+"key", n.Key, maxKey)
	return n
}

func notNegative(c *validate.Check, field string, n int64) {
	if n < 0 {
		c.Fail(field, "is negative")
	}
}

// putOf reads a value to write.
func putOf(c *validate.Check, path string, in *pb.PutStateRequest) Change {
	ch := Change{
		Name: nameOf(c, path, in), Compare: in.CompareRevision, Own: in.Own, Task: in.TaskId,
		Value: valueOf(c, path, in.GetValue()), TTL: c.Duration(path+"ttl", in.GetTtl(), shortestTTL, longestTTL, 0),
	}
	notNegative(c, path+"compare_revision", in.GetCompareRevision())
	c.Line(path+"task_id", in.GetTaskId(), validate.MaxID)
	return ch
}

// deletionOf reads a deletion.
func deletionOf(c *validate.Check, path string, in *pb.DeleteStateRequest) Change {
	notNegative(c, path+"compare_revision", in.GetCompareRevision())
	return Change{Name: nameOf(c, path, in), Compare: in.CompareRevision, Delete: true}
}

// valueOf reads and checks a value.
func valueOf(c *validate.Check, path string, in *pb.StateValue) Value {
	switch v := in.GetValue().(type) {
	case *pb.StateValue_StringValue:
		c.Text(path+"value.string_value", v.StringValue, MaxValue)
		return Value{String, v.StringValue}
	case *pb.StateValue_IntegerValue:
		return Value{Integer, strconv.FormatInt(v.IntegerValue, 10)}
	case *pb.StateValue_BooleanValue:
		return Value{Boolean, strconv.FormatBool(v.BooleanValue)}
	case *pb.StateValue_JsonValue:
		if v.JsonValue == "" {
			c.Fail(path+"value.json_value", "is empty; JSON text of some value is required")
		}
		c.JSON(path+"value.json_value", v.JsonValue, MaxValue)
		return Value{JSON, v.JsonValue}
	}
	c.Fail(path+"value", "is missing: set one of string_value, integer_value, boolean_value, json_value")
	return Value{}
}

// transactionOf reads compares and changes.
func transactionOf(c *validate.Check, in *pb.TransactStateRequest) (compares []Compare, changes []Change) {
	c.Count("compares", len(in.GetCompares()), MaxChanges)
	c.Count("changes", len(in.GetChanges()), MaxChanges)
	if len(in.GetChanges()) == 0 {
		c.Fail("changes", "is empty; 1 to %d are required", MaxChanges)
	}
	if len(in.GetCompares()) > MaxChanges || len(in.GetChanges()) > MaxChanges {
		return nil, nil
	}
	for i, compare := range in.GetCompares() {
		path := fmt.Sprintf("compares[%d].", i)
		notNegative(c, path+"revision", compare.GetRevision())
		compares = append(compares, Compare{nameOf(c, path, compare), compare.GetRevision()})
	}
	seen := make(map[Name]bool, len(in.GetChanges()))
	bytes := 0
	for i, change := range in.GetChanges() {
		var ch Change
		path, id := fmt.Sprintf("changes[%d].", i), ""
		switch {
		case change.GetPut() != nil:
			path += "put."
			ch, id = putOf(c, path, change.GetPut()), change.GetPut().GetRequestId()
		case change.GetDelete() != nil:
			path += "delete."
			ch, id = deletionOf(c, path, change.GetDelete()), change.GetDelete().GetRequestId()
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
