package messagesrpc

import (
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/work"
)

// noticeProtos converts unread notices.
func noticeProtos(unread []work.UnreadNotice) []*pb.Notice {
	out := make([]*pb.Notice, len(unread))
	for i, n := range unread {
		out[i] = &pb.Notice{
			Revision: n.Revision, Type: n.Type, Subject: n.Subject, Payload: n.Payload, CreatedAt: stamp(n.CreatedAt),
		}
	}
	return out
}
