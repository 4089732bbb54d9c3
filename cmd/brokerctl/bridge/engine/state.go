package engine

import (
	"context"
	"fmt"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/setting"
	pb "brokerd/gen/brokerd/v1"
)

// A State is the bridge's part of the session's state.
type State struct{ broker *client.Client }

// List returns the values of the bridge's state whose keys begin with a prefix.
func (s *State) List(ctx context.Context, prefix string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	found := map[string]string{}
	for token := ""; ; {
		page, err := s.broker.State().ListState(ctx, &pb.ListStateRequest{
			Namespace: setting.BridgeNamespace, KeyPrefix: prefix, Values: true, PageSize: 1000, PageToken: token})
		if err != nil {
			return nil, fmt.Errorf("read the state of the bridge: %w", err)
		}
		for _, e := range page.GetEntries() {
			found[e.GetKey()] = e.GetValue().GetStringValue()
		}
		if token = page.GetNextPageToken(); token == "" {
			return found, nil
		}
	}
}

// Change changes the bridge's state.
func (s *State) Change(ctx context.Context, changes []*pb.StateChange) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	if _, err := s.broker.State().TransactState(ctx, &pb.TransactStateRequest{Changes: changes}); err != nil {
		return fmt.Errorf("write the state of the bridge: %w", err)
	}
	return nil
}

// PutChange returns the change that writes a value.
func PutChange(key, value string) *pb.StateChange {
	text := &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: value}}
	return &pb.StateChange{Change: &pb.StateChange_Put{
		Put: &pb.PutStateRequest{Namespace: setting.BridgeNamespace, Key: key, Value: text}}}
}

func deleteChange(key string) *pb.StateChange {
	return &pb.StateChange{Change: &pb.StateChange_Delete{
		Delete: &pb.DeleteStateRequest{Namespace: setting.BridgeNamespace, Key: key}}}
}
