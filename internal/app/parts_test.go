package app_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/jsonform"
	"brokerd/internal/testkit"
)

// Kept data is that of one part of a session, by the name of its archive files and of its file in an export.
type kept struct {
	finish func(r *removal) (id string) // nil = it does not finish, so the keeper archives none
	open   func(r *removal) (id string) // unfinished; called after finish. Nil = the part is not tested alone
	// get returns the message whose JSON exports and the archive have.
	get func(r *removal, id string) (proto.Message, error)

	change  func(r *removal, id string) // of what is finished, so that the keeper must not remove it as it was
	end     func(r *removal, id string) // finishes it again; nil = it is finished
	changed string                      // a text that the archive must have, since the change has made it

	without []protoreflect.Name // fields of the message that exports and the archive leave out
	damaged string              // a column of items, which a table of work keeps; empty = another table
}

// item is kept data in the table of items that no call changes once it is finished: the test changes its row.
func item(finish, open func(r *removal) string, get func(r *removal, id string) (proto.Message, error)) kept {
	revise := func(by string) func(*removal, string) {
		return func(r *removal, id string) {
			testkit.Change(r.t, r.Dir(), `UPDATE items SET revision = revision `+by+` WHERE id = ?`, number(id))
		}
	}
	return kept{finish: finish, open: open, get: get, change: revise("+ 1"), end: revise("- 1"), damaged: "item"}
}

// number returns the number in an id such as v-4711.
func number(id string) string { return id[strings.IndexByte(id, '-')+1:] }

func kinds() map[string]kept {
	return map[string]kept{
		"decisions": item(
			func(r *removal) string {
				id := openDecision(r)
				_, err := pb.NewDecisionServiceClient(r.builder).Decide(r.ctx,
					&pb.DecideRequest{Id: id, Verdict: "approve", Reason: "fine"})
				succeed(r.t, err)
				return id
			}, openDecision, func(r *removal, id string) (proto.Message, error) {
				out, err := pb.NewDecisionServiceClient(r.operator).GetDecision(r.ctx, &pb.GetDecisionRequest{Id: id})
				return out.GetDecision(), err
			}),
		"blockers": item(
			func(r *removal) string {
				id := openBlocker(r)
				_, err := pb.NewBlockerServiceClient(r.lead).ResolveBlocker(r.ctx, &pb.ResolveBlockerRequest{Id: id, Resolution: "granted"})
				succeed(r.t, err)
				return id
			}, openBlocker, func(r *removal, id string) (proto.Message, error) {
				out, err := pb.NewBlockerServiceClient(r.operator).GetBlocker(r.ctx, &pb.GetBlockerRequest{Id: id})
				return out.GetBlocker(), err
			}),
		"votes": item(
			func(r *removal) string {
				id := openVote(r)
				votes := pb.NewVoteServiceClient(r.lead)
				_, err := votes.CastVote(r.ctx, &pb.CastVoteRequest{Id: id, Option: "a", Reason: "too early"})
				succeed(r.t, err)
				_, err = votes.CloseVote(r.ctx, &pb.CloseVoteRequest{Id: id})
				succeed(r.t, err)
				return id
			}, openVote, func(r *removal, id string) (proto.Message, error) {
				out, err := pb.NewVoteServiceClient(r.operator).GetVote(r.ctx, &pb.GetVoteRequest{Id: id})
				if out != nil {
					out.Revision = out.Vote.Revision
				}
				return out, err
			}),
		"handoffs":  keptHandoffs(),
		"tasks":     keptTasks(),
		"artifacts": keptArtifacts(),
		"messages":  keptMessages(),
		"types": {
			open: func(r *removal) string {
				out, err := pb.NewCatalogServiceClient(r.operator).RegisterMessageType(r.ctx, &pb.RegisterMessageTypeRequest{
					Name: "deploy_done", Aliases: []string{"shipped"}, Title: "Done", Example: `{"host": "a"}`, Schema: `{"type": "object"}`,
				})
				succeed(r.t, err)
				return out.GetType().GetName()
			},
			get: func(r *removal, id string) (proto.Message, error) {
				out, err := pb.NewCatalogServiceClient(r.operator).GetMessageType(r.ctx, &pb.GetMessageTypeRequest{Name: id})
				return out.GetType(), err
			},
		},
	}
}

func openDecision(r *removal) string {
	out, err := pb.NewDecisionServiceClient(r.lead).OpenDecision(r.ctx, &pb.OpenDecisionRequest{
		Kind: pb.DecisionKind_DECISION_KIND_PLAN, Title: "Plan", To: &pb.OpenDecisionRequest_Agent{Agent: "builder"},
		Content: &pb.DecisionContent{Body: "How"},
	})
	succeed(r.t, err)
	return out.GetDecision().GetId()
}

func openBlocker(r *removal) string {
	out, err := pb.NewBlockerServiceClient(r.lead).RaiseBlocker(r.ctx, &pb.RaiseBlockerRequest{Reason: "No key"})
	succeed(r.t, err)
	return out.GetBlocker().GetId()
}

func openVote(r *removal) string {
	out, err := pb.NewVoteServiceClient(r.lead).OpenVote(r.ctx, &pb.OpenVoteRequest{
		Title: "Deploy?", Description: "Why", Options: []string{"a", "b"}, Deadline: timestamppb.New(r.Clock.Now().Add(100 * apptest.LongLease / 7)),
	})
	succeed(r.t, err)
	return out.GetVote().GetId()
}

// keptHandoffs are handoffs, whose checklist changes after they are accepted.
func keptHandoffs() kept {
	open := func(r *removal) string {
		out, err := pb.NewHandoffServiceClient(r.lead).CreateHandoff(r.ctx, &pb.CreateHandoffRequest{
			Title: "Login", ToAgent: "builder", Checklist: []string{"one"}, Content: &pb.HandoffContent{Background: "Since May"},
		})
		succeed(r.t, err)
		return out.GetHandoff().GetId()
	}
	return kept{
		open: open,
		finish: func(r *removal) string {
			id := open(r)
			_, err := pb.NewHandoffServiceClient(r.builder).AcceptHandoff(r.ctx, &pb.AcceptHandoffRequest{Id: id})
			succeed(r.t, err)
			return id
		},
		change: func(r *removal, id string) {
			_, err := pb.NewHandoffServiceClient(r.builder).CheckHandoffItem(r.ctx, &pb.CheckHandoffItemRequest{Id: id, Number: 1})
			succeed(r.t, err)
		},
		get: func(r *removal, id string) (proto.Message, error) {
			out, err := pb.NewHandoffServiceClient(r.operator).GetHandoff(r.ctx, &pb.GetHandoffRequest{Id: id})
			return out.GetHandoff(), err
		},
		changed: `"checked_by":"builder"`, damaged: "item",
	}
}

func keptTasks() kept {
	open := func(r *removal) string {
		out, err := pb.NewTaskServiceClient(r.builder).CreateTasks(r.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "t"}}})
		succeed(r.t, err)
		return out.GetTasks()[0].GetId()
	}
	return kept{
		open: open,
		finish: func(r *removal) string {
			id, tasks := open(r), pb.NewTaskServiceClient(r.builder)
			claim, err := tasks.ClaimTask(r.ctx, &pb.ClaimTaskRequest{Id: id})
			succeed(r.t, err)
			_, err = tasks.FailTask(r.ctx, &pb.FailTaskRequest{Id: id, Fence: claim.GetTask().GetFence(), Error: "e", Fatal: true})
			succeed(r.t, err)
			return id
		},
		change: func(r *removal, id string) {
			_, err := pb.NewTaskServiceClient(r.builder).RetryTask(r.ctx, &pb.RetryTaskRequest{Id: id})
			succeed(r.t, err)
		},
		get: func(r *removal, id string) (proto.Message, error) {
			out, err := pb.NewTaskServiceClient(r.operator).GetTask(r.ctx,
				&pb.GetTaskRequest{Id: id, View: pb.TaskView_TASK_VIEW_FULL})
			return &pb.GetTaskResponse{Task: out.GetTask(), History: out.GetHistory(), Revision: out.GetTask().GetRevision()}, err
		},
		end: func(r *removal, id string) {
			_, err := pb.NewTaskServiceClient(r.builder).CancelTask(r.ctx, &pb.CancelTaskRequest{Id: id})
			succeed(r.t, err)
		},
		without: []protoreflect.Name{"dependencies", "dependents", "subtasks", "references"},
	}
}

// keptArtifacts are versions, the replaced ones of which the keeper archives unless live data names them.
func keptArtifacts() kept {
	return kept{
		finish: func(r *removal) string {
			r.upload("a.txt", "one")
			r.upload("a.txt", "two")
			return "a.txt@1"
		},
		open: func(*removal) string { return "a.txt@2" },
		change: func(r *removal, id string) {
			_, err := pb.NewMessageServiceClient(r.lead).SendMessages(r.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
				Target: &pb.Target{To: &pb.Target_Agent{Agent: "builder"}}, Type: "inform", Artifacts: []string{id},
			}}})
			succeed(r.t, err)
		},
		get: func(r *removal, id string) (proto.Message, error) {
			name, text, _ := strings.Cut(id, "@")
			version, err := strconv.ParseInt(text, 10, 64)
			succeed(r.t, err)
			out, err := pb.NewArtifactServiceClient(r.operator).GetArtifact(r.ctx, &pb.GetArtifactRequest{Name: name, Version: version})
			return out.GetArtifact(), err
		},
		end: func(r *removal, _ string) { r.drop("builder") },
	}
}

// keptMessages are dead letters, which an operator sends again.
func keptMessages() kept {
	return kept{
		finish: func(r *removal) string {
			out, err := pb.NewMessageServiceClient(r.lead).SendMessages(r.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
				Target: &pb.Target{To: &pb.Target_Agent{Agent: "builder"}}, Type: "inform",
			}}})
			succeed(r.t, err)
			messages := pb.NewMessageServiceClient(r.builder)
			claims, err := messages.ClaimMessages(r.ctx, &pb.ClaimMessagesRequest{})
			succeed(r.t, err)
			_, err = messages.NackMessages(r.ctx, &pb.NackMessagesRequest{
				Nacks: []*pb.Nack{{ClaimId: claims.GetClaims()[0].GetClaimId(), Error: "e", Fatal: true}},
			})
			succeed(r.t, err)
			return out.GetResults()[0].GetId()
		},
		change: func(r *removal, id string) {
			_, err := pb.NewMessageServiceClient(r.operator).RedriveDeadLetters(r.ctx, &pb.RedriveDeadLettersRequest{Ids: []string{id}})
			succeed(r.t, err)
		},
		get: func(r *removal, id string) (proto.Message, error) {
			return pb.NewMessageServiceClient(r.operator).GetMessage(r.ctx, &pb.GetMessageRequest{Id: id})
		},
		end: func(r *removal, _ string) { r.drop("builder") },
	}
}

// line returns the JSON that exports and the archive have of data.
func (r *removal) line(kind kept, id string) string {
	r.t.Helper()
	m, err := kind.get(r, id)
	succeed(r.t, err)
	var text bytes.Buffer
	succeed(r.t, jsonform.Append(&text, m, kind.without...))
	return text.String()
}

// wantLine compares a line with that of the API.
func (r *removal) wantLine(where, want, got string) {
	r.t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		r.t.Errorf("%s, as the API has it (-) and as it is there (+): %s", where, d)
	}
}

func TestParts_AreArchivedAndExportedAsTheAPIHasThemAndErasedWithTheSession(t *testing.T) {
	t.Parallel()
	r, all := newRemoval(t), kinds()
	delete(all, "messages")
	type entry struct{ id, line string }
	finished, open := map[string]entry{}, map[string]entry{}
	for name, kind := range all {
		if kind.finish != nil {
			id := kind.finish(r)
			finished[name] = entry{id, r.line(kind, id)}
		}
		open[name] = entry{id: kind.open(r)}
	}
	for name, done := range finished {
		r.advance(func() bool { return !r.exists(all[name], done.id) })
		r.wantLine("the archive of "+name, done.line+"\n", r.archive(name))
	}
	sessions := pb.NewSessionServiceClient(r.Operator())
	_, err := sessions.CloseSession(r.ctx, &pb.CloseSessionRequest{Name: project})
	succeed(t, err)
	for name, left := range open {
		open[name] = entry{left.id, r.line(all[name], left.id)}
	}
	out, err := sessions.DeleteSession(r.ctx, &pb.DeleteSessionRequest{Name: project})
	succeed(t, err)
	for name, left := range open {
		text, err := os.ReadFile(filepath.Join(r.Dir(), out.GetArchive(), name+".jsonl"))
		succeed(t, err)
		got, want := strings.Split(strings.TrimSpace(string(text)), "\n"), []string{left.line}
		if done, ok := finished[name]; ok { // the lines of the archive come first, and each says where it was
			want = []string{`{"archived":true,` + done.line[1:], `{"archived":false,` + left.line[1:]}
		}
		if len(got) != len(want) {
			t.Errorf("the export has %d lines of %s, want %d: %s", len(got), name, len(want), text)
			continue
		}
		for i, w := range want {
			r.wantLine("the export of "+name, w, got[i])
		}
	}
	for _, table := range []string{
		"items", "item_parts", "tasks", "artifacts", "artifact_versions", "artifact_contents", "artifact_usage", "message_types",
	} {
		if n := testkit.Number(t, r.Dir(), `SELECT count(*) FROM `+table); n != 0 {
			t.Errorf("the deletion of the session has left %d rows in %s", n, table)
		}
	}
	if files, err := filepath.Glob(filepath.Join(r.Dir(), "archive", project, "*")); err != nil || len(files) > 0 {
		t.Errorf("the deletion has left %v, %v", files, err)
	}
}

func TestParts_PassOverADamagedItem(t *testing.T) {
	t.Parallel()
	r, all := newRemoval(t), kinds()
	damaged, sound := map[string]string{}, map[string]string{}
	for name, kind := range all {
		if kind.damaged == "" {
			continue
		}
		damaged[name], sound[name] = kind.finish(r), kind.finish(r)
	}
	set := func(item string) {
		for _, id := range damaged {
			testkit.Change(t, r.Dir(), `UPDATE items SET item = `+item+` WHERE id = ?`, number(id))
		}
	}
	r.Restart(func() { set(`CAST(x'0a' || item AS BLOB)`) })
	for name, id := range sound {
		r.advance(func() bool { return !r.exists(all[name], id) })
		if text := r.archive(name); strings.Count(text, "\n") != 1 || !strings.Contains(text, fmt.Sprintf(`"id":%q`, id)) {
			t.Errorf("beside a damaged one, the archive has these %s: %s", name, text)
		}
	}
	for name, id := range damaged {
		if n := testkit.Number(t, r.Dir(), `SELECT count(*) FROM items WHERE id = ?`, number(id)); n != 1 {
			t.Errorf("%s: the damaged %s was removed", name, id)
		}
	}
	r.Restart(func() { set(`substr(item, 2)`) })
}
