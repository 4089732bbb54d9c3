package rules_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/fault"
	"brokerd/internal/rules"
)

// FuzzDaemon makes calls of every method in a session that does not exist, as an agent and as an operator. The daemon
// refuses each for a reason of the caller, or answers it.
func FuzzDaemon(f *testing.F) {
	b := apptest.Start(f)
	agent, operator := b.In("none", "a"), b.In("none", "")
	all := append(methods(), pb.File_brokerd_v1_lock_proto.Services().ByName("LockService").Methods().ByName("Lock"))
	all = slices.DeleteFunc(all, func(m protoreflect.MethodDescriptor) bool { // they end the work of all agents
		return strings.HasPrefix(string(m.Name()), "Drain")
	})
	slices.SortFunc(all, func(a, b protoreflect.MethodDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
	for i, m := range all {
		full := made(m.Input()).Interface() // has each field, within its bounds
		for _, c := range cases(m.Input()) {
			if c.ok && !proto.Equal(c.request, full) {
				proto.Merge(full, c.request)
			}
		}
		for _, seed := range []proto.Message{made(m.Input()).Interface(), full} {
			wire, err := proto.Marshal(seed)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint(i), false, wire)
			f.Add(uint(i), true, wire)
		}
	}
	f.Fuzz(func(t *testing.T, n uint, operates bool, wire []byte) {
		m, conn := all[n%uint(len(all))], agent
		if operates {
			conn = operator
		}
		request := made(m.Input()).Interface()
		if proto.Unmarshal(wire, request) != nil {
			t.Skip() // the client cannot make the request
		}
		switch err := call(t, conn, m, request); status.Code(err) {
		case codes.Internal, codes.Unknown, codes.DataLoss, codes.Unimplemented, codes.Unavailable, codes.DeadlineExceeded:
			t.Fatalf("%s: %v: %v", m.FullName(), request, err)
		}
	})
}

// FuzzCheck checks requests of every kind. A request of the trials that is beyond a bound stays refused, whatever else
// the request has.
func FuzzCheck(f *testing.F) {
	var set rules.Set
	var all []trial
	var checks []*rules.Message
	for _, m := range methods() {
		if known := set.Message(m.Input()); known != nil {
			for _, c := range cases(m.Input()) {
				if !c.ok && refuses(known, c.request, c.path) { // not of a message that is checked by hand
					all, checks = append(all, c), append(checks, known)
				}
			}
		}
	}
	f.Add(uint(0), []byte{})
	f.Fuzz(func(t *testing.T, n uint, wire []byte) {
		c, check := all[n%uint(len(all))], checks[n%uint(len(all))]
		more := proto.Clone(c.request)
		if (proto.UnmarshalOptions{Merge: true}).Unmarshal(wire, more) != nil {
			t.Skip() // the daemon refuses bytes that are no message before
		}
		err := check.Check(more)
		if fault.KindOf(err) != fault.Invalid && err != nil {
			t.Fatalf("%v: %v", more, err)
		}
		if len(wire) > 0 && touches(c.request, wire) { // the wire may have replaced the value
			return
		}
		if !refuses(check, more, c.path) {
			t.Fatalf("%s: %s is accepted in %v", c.path, c.what, more)
		}
	})
}

// touches reports whether a message sets a field that a request has.
func touches(request proto.Message, wire []byte) (is bool) {
	m := request.ProtoReflect().New()
	if (proto.UnmarshalOptions{Merge: true}).Unmarshal(wire, m.Interface()) != nil {
		return true
	}
	m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		oneof := f.ContainingOneof()
		is = is || request.ProtoReflect().Has(f) || oneof != nil && request.ProtoReflect().WhichOneof(oneof) != nil
		return true
	})
	return is || proto.Size(request) == 0
}

// refuses reports whether the checks name a field of a request.
func refuses(check *rules.Message, request proto.Message, path string) bool {
	return violation(check.Check(request), path) != ""
}
