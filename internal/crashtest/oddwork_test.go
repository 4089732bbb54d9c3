package crashtest_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

// A check compares one finished odd job with what the broker has in the end.
type check func(ctx context.Context, d *daemon) error

// expect adds a check of the present job.
func (o *oddJobber) expect(what string, c check) {
	number := o.number
	o.checks = append(o.checks, func(ctx context.Context, d *daemon) error {
		if err := c(ctx, d); err != nil {
			return fmt.Errorf("%s of odd job %d: %w", what, number, err)
		}
		return nil
	})
}

// review opens a review, which is revised once and approved.
func (o *oddJobber) review() []job {
	var id string
	opens := &pb.OpenDecisionRequest{
		RequestId: requestID(), Kind: pb.DecisionKind_DECISION_KIND_REVIEW,
		To: &pb.OpenDecisionRequest_Agent{Agent: "answerer"}, Title: fmt.Sprintf("review %d", o.number),
	}
	decide := func(verdict string) job {
		decides := &pb.DecideRequest{RequestId: requestID(), Verdict: verdict}
		return func(ctx context.Context, d *daemon) error {
			decides.Id = id
			_, err := d.decisions.Decide(inOdds(ctx, "answerer"), decides)
			return err
		}
	}
	resubmits := &pb.ResubmitDecisionRequest{RequestId: requestID()}
	o.expect("review", func(ctx context.Context, d *daemon) error {
		got, err := d.decisions.GetDecision(ctx, &pb.GetDecisionRequest{Id: id})
		rounds := got.GetDecision().GetRounds()
		if err == nil && (got.GetDecision().GetVerdict() != "approve" || len(rounds) != 2 || rounds[0].GetVerdict() != "revise") {
			err = fmt.Errorf("it is %v", got)
		}
		return err
	})
	return []job{func(ctx context.Context, d *daemon) error {
		answer, err := d.decisions.OpenDecision(inOdds(ctx, "asker"), opens)
		id = answer.GetDecision().GetId()
		return err
	}, decide("revise"), func(ctx context.Context, d *daemon) error {
		resubmits.Id = id
		_, err := d.decisions.ResubmitDecision(inOdds(ctx, "asker"), resubmits)
		return err
	}, decide("approve")}
}

// block raises a blocker, which is acknowledged and resolved.
func (o *oddJobber) block() []job {
	var id string
	raises := &pb.RaiseBlockerRequest{
		RequestId: requestID(), Reason: fmt.Sprintf("blocker %d", o.number),
		Recipients: []*pb.BlockerRecipient{{Recipient: &pb.BlockerRecipient_Agent{Agent: "answerer"}}},
	}
	acknowledges := &pb.AcknowledgeBlockerRequest{RequestId: requestID()}
	resolves := &pb.ResolveBlockerRequest{RequestId: requestID()}
	o.expect("blocker", func(ctx context.Context, d *daemon) error {
		got, err := d.blockers.GetBlocker(ctx, &pb.GetBlockerRequest{Id: id})
		if err != nil {
			return err
		}
		seen := map[pb.BlockerStep]int{}
		for _, entry := range got.GetBlocker().GetTimeline() {
			seen[entry.GetStep()]++
		}
		for _, step := range []pb.BlockerStep{
			pb.BlockerStep_BLOCKER_STEP_RAISED, pb.BlockerStep_BLOCKER_STEP_NOTIFIED,
			pb.BlockerStep_BLOCKER_STEP_ACKNOWLEDGED, pb.BlockerStep_BLOCKER_STEP_RESOLVED,
		} {
			if seen[step] != 1 {
				return fmt.Errorf("%v is %d times in the timeline of %v", step, seen[step], got)
			}
		}
		return nil
	})
	return []job{func(ctx context.Context, d *daemon) error {
		answer, err := d.blockers.RaiseBlocker(inOdds(ctx, "asker"), raises)
		id = answer.GetBlocker().GetId()
		return err
	}, func(ctx context.Context, d *daemon) error {
		acknowledges.Id = id
		_, err := d.blockers.AcknowledgeBlocker(inOdds(ctx, "answerer"), acknowledges)
		return err
	}, func(ctx context.Context, d *daemon) error {
		resolves.Id = id
		_, err := d.blockers.ResolveBlocker(inOdds(ctx, "answerer"), resolves)
		return err
	}}
}

// handOver creates and claims a task, and passes it on with a handoff. The new holder completes it.
func (o *oddJobber) handOver() []job {
	task, handoff := fmt.Sprintf("handed-%d", o.number), ""
	creates := &pb.CreateTasksRequest{RequestId: requestID(), Tasks: []*pb.NewTask{{Id: task, Title: "pass it on"}}}
	claims := &pb.ClaimTaskRequest{RequestId: requestID(), Id: task}
	offers := &pb.CreateHandoffRequest{RequestId: requestID(), Title: "take it", TaskId: task, ToAgent: "answerer", TransferTask: true}
	accepts := &pb.AcceptHandoffRequest{RequestId: requestID()}
	completes := &pb.CompleteTaskRequest{RequestId: requestID(), Id: task}
	o.expect("handoff", func(ctx context.Context, d *daemon) error {
		got, err := d.handoffs.GetHandoff(ctx, &pb.GetHandoffRequest{Id: handoff})
		if err == nil && got.GetHandoff().GetState() != pb.HandoffState_HANDOFF_STATE_ACCEPTED {
			err = fmt.Errorf("it is %v", got)
		}
		return err
	})
	o.expect("task", func(ctx context.Context, d *daemon) error {
		got, err := d.tasks.GetTask(ctx, &pb.GetTaskRequest{Id: task})
		if err == nil && (got.GetTask().GetState() != pb.TaskState_TASK_STATE_DONE || got.GetTask().GetHolder() != "answerer") {
			err = fmt.Errorf("it is %v", got)
		}
		return err
	})
	return []job{func(ctx context.Context, d *daemon) error {
		_, err := d.tasks.CreateTasks(inOdds(ctx, "asker"), creates)
		return err
	}, func(ctx context.Context, d *daemon) error {
		_, err := d.tasks.ClaimTask(inOdds(ctx, "asker"), claims)
		return err
	}, func(ctx context.Context, d *daemon) error {
		answer, err := d.handoffs.CreateHandoff(inOdds(ctx, "asker"), offers)
		handoff = answer.GetHandoff().GetId()
		return err
	}, func(ctx context.Context, d *daemon) error {
		accepts.Id = handoff
		_, err := d.handoffs.AcceptHandoff(inOdds(ctx, "answerer"), accepts)
		return err
	}, func(ctx context.Context, d *daemon) error {
		_, err := d.tasks.CompleteTask(inOdds(ctx, "answerer"), completes)
		return err
	}}
}

// vote opens a vote of two agents, the first of which changes its ballot.
func (o *oddJobber) vote() []job {
	var id string
	opens := &pb.OpenVoteRequest{
		RequestId: requestID(), Title: fmt.Sprintf("vote %d", o.number), Options: []string{"a", "b"},
		Electorate: &pb.OpenVoteRequest_Agents{Agents: &pb.Names{Names: []string{"asker", "answerer"}}},
	}
	cast := func(agent, option string) job {
		casts := &pb.CastVoteRequest{RequestId: requestID(), Option: option}
		return func(ctx context.Context, d *daemon) error {
			casts.Id = id
			_, err := d.votes.CastVote(inOdds(ctx, agent), casts)
			return err
		}
	}
	o.expect("vote", func(ctx context.Context, d *daemon) error {
		got, err := d.votes.GetVote(ctx, &pb.GetVoteRequest{Id: id})
		v := got.GetVote()
		if err == nil && (v.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_WINNER || v.GetWinner() != "b" || v.GetBallots() != 2) {
			err = fmt.Errorf("it is %v", got)
		}
		return err
	})
	return []job{func(ctx context.Context, d *daemon) error {
		answer, err := d.votes.OpenVote(inOdds(ctx, "asker"), opens)
		id = answer.GetVote().GetId()
		return err
	}, cast("asker", "a"), cast("asker", "b"), cast("answerer", "b")}
}

// mostContent is how many bytes an uploaded artifact has at most.
const mostContent = 300 << 10

// upload uploads an artifact, and removes every other one.
func (o *oddJobber) upload() []job {
	name, remove := fmt.Sprintf("odd/%d.bin", o.number), o.random.IntN(2) == 0
	content := make([]byte, 1+o.random.IntN(mostContent))
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], o.random.Uint64())
	_, _ = rand.NewChaCha8(seed).Read(content) // it never fails
	sum := sha256.Sum256(content)
	header := &pb.ArtifactHeader{RequestId: requestID(), Name: name, Size: int64(len(content)), Sha256: hex.EncodeToString(sum[:])}
	jobs := []job{func(ctx context.Context, d *daemon) error { return upload(inOdds(ctx, "asker"), d, header, content) }}
	if remove {
		removes := &pb.DeleteArtifactRequest{RequestId: requestID(), Name: name}
		jobs = append(jobs, func(ctx context.Context, d *daemon) error {
			_, err := d.artifacts.DeleteArtifact(inOdds(ctx, "asker"), removes)
			return err
		})
	}
	o.expect("artifact", func(ctx context.Context, d *daemon) error {
		got, err := download(ctx, d, name)
		switch {
		case remove && status.Code(err) != codes.NotFound:
			return fmt.Errorf("it was removed, and reading it gives %d bytes (%w)", len(got), err)
		case !remove && (err != nil || !bytes.Equal(got, content)):
			return fmt.Errorf("it has %d of %d bytes (%w)", len(got), len(content), err)
		}
		return nil
	})
	return jobs
}

func upload(ctx context.Context, d *daemon, header *pb.ArtifactHeader, content []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := d.artifacts.UploadArtifact(ctx)
	if err != nil {
		return err
	}
	frame := &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: header}}
	for err == nil && frame != nil {
		err = stream.Send(frame)
		n := min(len(content), 64<<10)
		frame = nil
		if n > 0 {
			frame = &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Chunk{Chunk: content[:n]}}
		}
		content = content[n:]
	}
	if err != nil && !errors.Is(err, io.EOF) { // EOF: the answer says why
		return err
	}
	_, err = stream.CloseAndRecv()
	return err
}

func download(ctx context.Context, d *daemon, name string) ([]byte, error) {
	stream, err := d.artifacts.DownloadArtifact(ctx, &pb.DownloadArtifactRequest{Name: name})
	if err != nil {
		return nil, err
	}
	var content []byte
	for {
		frame, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return content, nil
		}
		if err != nil {
			return content, err
		}
		content = append(content, frame.GetChunk()...)
	}
}
