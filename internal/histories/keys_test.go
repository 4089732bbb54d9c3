package histories_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

// A keysClient reads and writes a few keys that all clients share.
type keysClient struct {
	*client
	stub   pb.StateServiceClient
	number int
	known  [groups][pair]int64 // revisions as last seen; 0 = it did not exist
}

func newKeysClient(c *client) func() error {
	k := &keysClient{client: c, stub: pb.NewStateServiceClient(c.daemon.conn)}
	return k.next
}

func keyName(group, key int) string { return fmt.Sprintf("group-%d/key-%d", group, key) }

func documentName(group int) string { return fmt.Sprintf("group-%d/document", group) }

// next makes one call, of any kind.
func (k *keysClient) next() error {
	call := keyCall{group: k.random.IntN(groups), key: k.random.IntN(pair)}
	k.number++
	call.value = fmt.Sprintf("%d.%d", k.client.number, k.number)
	n := k.random.IntN(100)
	if n >= 45 && n < 80 { // most changes compare
		known := k.known[call.group][call.key]
		call.compares[call.key] = &known
	}
	switch {
	case n < 30:
		return k.get(call)
	case n < 70:
		return k.put(call)
	case n < 80:
		return k.remove(call)
	case n < 90:
		for i := range pair {
			known := k.known[call.group][i]
			call.compares[i] = &known
		}
		return k.transact(call)
	case n < 96:
		return k.append(call)
	default:
		return k.read(call)
	}
}

func (k *keysClient) get(call keyCall) error {
	call.verb, call.value = get, ""
	var out *pb.GetStateResponse
	from, to, _, err := k.call(true, func(ctx context.Context) (err error) {
		out, err = k.stub.GetState(ctx, &pb.GetStateRequest{Key: keyName(call.group, call.key)})
		return err
	})
	entry := out.GetEntry()
	a := keyAnswer{found: true, value: entry.GetValue().GetStringValue(), revision: entry.GetRevision(), at: out.GetRevision()}
	a.versions[0] = entry.GetVersion()
	if status.Code(err) == codes.NotFound {
		a, err = keyAnswer{}, nil
	}
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	k.known[call.group][call.key] = a.revision
	k.add(from, to, call, a)
	return nil
}

func (k *keysClient) put(call keyCall) error {
	call.verb = put
	var out *pb.PutStateResponse
	from, to, known, err := k.change(func(ctx context.Context, id string) (err error) {
		out, err = k.stub.PutState(ctx, &pb.PutStateRequest{RequestId: id, Key: keyName(call.group, call.key), Value: text(call.value),
			CompareRevision: call.compares[call.key]})
		return err
	})
	a := keyAnswer{revision: out.GetEntry().GetRevision()}
	a.versions[call.key] = out.GetEntry().GetVersion()
	return k.changed(from, to, known, err, call, a)
}

func (k *keysClient) remove(call keyCall) error {
	call.verb, call.value = remove, ""
	var out *pb.DeleteStateResponse
	from, to, known, err := k.change(func(ctx context.Context, id string) (err error) {
		out, err = k.stub.DeleteState(ctx, &pb.DeleteStateRequest{RequestId: id, Key: keyName(call.group, call.key),
			CompareRevision: call.compares[call.key]})
		return err
	})
	return k.changed(from, to, known, err, call, keyAnswer{found: out.GetDeleted(), revision: out.GetRevision()})
}

func (k *keysClient) transact(call keyCall) error {
	call.verb = transact
	request := &pb.TransactStateRequest{}
	for i := range pair {
		request.Compares = append(request.Compares, &pb.StateCompare{Key: keyName(call.group, i), Revision: *call.compares[i]})
		request.Changes = append(request.Changes, &pb.StateChange{Change: &pb.StateChange_Put{
			Put: &pb.PutStateRequest{Key: keyName(call.group, i), Value: text(call.value)}}})
	}
	var out *pb.TransactStateResponse
	from, to, known, err := k.change(func(ctx context.Context, id string) (err error) {
		request.RequestId = id
		out, err = k.stub.TransactState(ctx, request)
		return err
	})
	a := keyAnswer{revision: out.GetRevision()}
	for i, entry := range out.GetEntries() {
		a.versions[i] = entry.GetVersion()
		if entry.GetRevision() != out.GetRevision() {
			return fmt.Errorf("transact: a change has revision %d, and all of them %d", entry.GetRevision(), out.GetRevision())
		}
	}
	return k.changed(from, to, known, err, call, a)
}

// changed records a change of keys with values.
func (k *keysClient) changed(from, to int64, known bool, err error, call keyCall, a keyAnswer) error {
	why, details := reason(err)
	switch {
	case !known && err == nil:
		k.add(from, to, call, nil)
		return nil
	case why == "STATE_CHANGED":
		now, _ := strconv.ParseInt(details["revision"], 10, 64)
		a = keyAnswer{changed: true, revision: now}
		if call.verb != transact { // it does not tell of which key
			k.known[call.group][call.key] = now
		}
	case err != nil:
		return fmt.Errorf("change %v: %w", call, err)
	case call.verb == transact:
		k.known[call.group] = [pair]int64{a.revision, a.revision}
	case call.verb == put:
		k.known[call.group][call.key] = a.revision
	default:
		k.known[call.group][call.key] = 0
	}
	k.add(from, to, call, a)
	return nil
}

func (k *keysClient) append(call keyCall) error {
	call.verb, call.key = add, 0
	var out *pb.AppendStateResponse
	from, to, known, err := k.change(func(ctx context.Context, id string) (err error) {
		out, err = k.stub.AppendState(ctx, &pb.AppendStateRequest{RequestId: id, Key: documentName(call.group), Text: call.value})
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("append: %w", err)
	case !known:
		k.add(from, to, call, nil)
	default:
		k.add(from, to, call, keyAnswer{revision: out.GetEntry().GetRevision(), number: int64(out.GetNumber())})
	}
	return nil
}

func (k *keysClient) read(call keyCall) error {
	call.verb, call.key, call.value = read, 0, ""
	var out *pb.GetStateResponse
	from, to, _, err := k.call(true, func(ctx context.Context) (err error) {
		out, err = k.stub.GetState(ctx, &pb.GetStateRequest{Key: documentName(call.group)})
		return err
	})
	a := keyAnswer{found: true, revision: out.GetEntry().GetRevision(), at: out.GetRevision(), number: int64(out.GetEntry().GetEntries())}
	if status.Code(err) == codes.NotFound {
		a, err = keyAnswer{}, nil
	}
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	var all strings.Builder
	for _, entry := range out.GetEntries() {
		all.WriteString(entry.GetText() + "\n")
	}
	a.value = all.String()
	k.add(from, to, call, a)
	return nil
}

func text(s string) *pb.StateValue {
	return &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: s}}
}
