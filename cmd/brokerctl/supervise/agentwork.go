package supervise

import (
	"context"
	"fmt"
	"io"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/output"
	pb "brokerd/gen/brokerd/v1"
)

// upload uploads a file, however long that takes as long as it proceeds.
func (r *Reporter) upload(ctx context.Context, u *fileUpload) error {
	file, err := r.from.Open(u.path)
	if err != nil {
		return fmt.Errorf("the artifact is not uploaded: %w", err)
	}
	defer func() { _ = file.Close() }() // it is only read
	answer, err := r.broker.UploadArtifact(ctx, u.header, readNotice{file, r.proceed}, nil)
	if err == nil {
		r.sayf("uploaded %s (%s)", client.ArtifactReference(answer.GetArtifact()), output.Size(answer.GetArtifact().GetSize()))
	}
	return err
}

// proceed extends the time for the last reports.
func (r *Reporter) proceed() {
	if extend, ok := r.extend.Load().(func()); ok {
		extend()
	}
}

// readNotice calls a function with every read.
type readNotice struct {
	io.ReadSeeker
	read func()
}

// Read implements io.Reader.
func (n readNotice) Read(p []byte) (int, error) {
	n.read()
	return n.ReadSeeker.Read(p)
}

// raise raises a blocker, unless the program waits for that agent already. It keeps the id, for the
// report that the wait has ended.
func (r *Reporter) raise(ctx context.Context, request *pb.RaiseBlockerRequest) error {
	awaited := request.GetAwaited().GetAgent()
	if id := r.blockers[awaited]; id != "" {
		answer, err := r.broker.Blockers().GetBlocker(ctx, &pb.GetBlockerRequest{Id: id})
		if err != nil || answer.GetBlocker().GetState() != pb.BlockerState_BLOCKER_STATE_RESOLVED {
			return err
		}
	}
	answer, err := r.broker.Blockers().RaiseBlocker(ctx, request)
	if err != nil {
		return err
	}
	if r.blockers == nil {
		r.blockers = map[string]string{}
	}
	r.blockers[awaited] = answer.GetBlocker().GetId()
	return nil
}

// resolve resolves the blocker that the program has raised about an agent, or about all of them.
func (r *Reporter) resolve(ctx context.Context, awaited string) error {
	for about, id := range r.blockers {
		if awaited != everyAgent && awaited != about {
			continue
		}
		_, err := r.broker.Blockers().ResolveBlocker(ctx, &pb.ResolveBlockerRequest{Id: id})
		if err != nil && client.Reason(err) != "BLOCKER_RESOLVED" {
			return err
		}
		delete(r.blockers, about)
	}
	return nil
}
