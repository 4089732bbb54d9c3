package apptest

import (
	"context"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/msgtype"
)

// checkPayloads fails the test if one of the newest messages of a type that the broker sends does not
// fit the schema of the type.
func (b *Broker) checkPayloads(ctx context.Context) {
	b.Helper()
	sessions, err := pb.NewSessionServiceClient(b.Operator()).ListSessions(ctx, &pb.ListSessionsRequest{PageSize: 1000})
	if err != nil {
		b.Error(err)
	}
	types := msgtype.NewSet(nil)
	for _, s := range sessions.GetSessions() {
		page, err := pb.NewMessageServiceClient(b.In(s.Name, "")).ListMessages(ctx, &pb.ListMessagesRequest{
			Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{Types: ofBroker()}, NewestFirst: true, PageSize: 1000,
		})
		if err != nil {
			b.Error(err)
		}
		for _, item := range page.GetItems() {
			m := item.Message
			if _, doubt := types.Check(m.Type, m.Payload); doubt != nil {
				b.Errorf("message %d of type %s: payload %s: %s", m.Revision, m.Type, m.Payload, msgtype.Join(doubt.Faults))
			}
		}
	}
}

// ofBroker returns the types that the broker sends.
func ofBroker() (types []string) {
	for _, family := range msgtype.Families() {
		for _, t := range family.Types {
			if strings.HasPrefix(t.Sender, "the broker") || strings.Contains(t.Sender, "or the broker") {
				types = append(types, t.Name)
			}
		}
	}
	return types
}
