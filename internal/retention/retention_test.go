package retention_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMessages_FinishedOnesAreArchivedByDayAndRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(keep(24 * time.Hour))
	first := w.finish(&pb.Message{Subject: "one", Payload: `{"n": [1, 9007199254740993]}`})
	w.Clock.Advance(23 * time.Hour)
	second := w.finish(&pb.Message{Subject: "two"})
	waiting := w.send(&pb.Message{Subject: "unfinished"})
	w.turned()
	if !w.there(first) {
		t.Fatal("the message went before its time")
	}
	w.Clock.Advance(time.Hour)
	w.gone(first)
	if !w.there(second) {
		t.Error("a message went that was finished later")
	}
	w.Clock.Advance(25 * time.Hour)
	w.gone(second)
	if !w.there(waiting) {
		t.Error("a message went that is not finished")
	}

	lines, files := w.lines("messages")
	if diff := cmp.Diff([]string{"messages-2026-01-02.jsonl.gz", "messages-2026-01-03.jsonl.gz"}, files); diff != "" {
		t.Fatalf("files (-want +got):\n%s", diff)
	}
	message := lines[0]["message"].(map[string]any)
	delivery := lines[0]["deliveries"].([]any)[0].(map[string]any)
	got := map[string]any{
		"id": message["id"], "subject": message["subject"], "sender": message["sender"], "payload": message["payload"],
		"target": message["target"], "state": delivery["state"], "mailbox": delivery["mailbox"], "history": delivery["history"],
	}
	want := map[string]any{
		"id": first.GetId(), "subject": "one", "sender": "lead", "payload": map[string]any{"n": []any{1.0, 9007199254740993.0}},
		"target": map[string]any{"agent": "builder"}, "state": "ACKED", "mailbox": "builder", "history": []any{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the line (-want +got):\n%s", diff)
	}
	w.Check()
}

func TestMessages_DeadLettersAreKeptLongerWithTheirAttempts(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(merged(keep(time.Hour), &pb.SessionSettings{DeadLetterRetention: durationpb.New(48 * time.Hour)}))
	dead := w.die(&pb.Message{})
	acked := w.finish(&pb.Message{})
	w.Clock.Advance(2 * time.Hour)
	w.gone(acked)
	if !w.there(dead) {
		t.Fatal("the dead letter went with the others")
	}
	w.Clock.Advance(48 * time.Hour)
	w.gone(dead)
	lines, _ := w.lines("messages")
	history := lines[1]["deliveries"].([]any)[0].(map[string]any)["history"].([]any)
	if len(history) != 1 || history[0].(map[string]any)["error"] != "no" {
		t.Errorf("the attempts are %v", history)
	}
}

func TestMessages_ChannelHasATimeOfItsOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(keep(72 * time.Hour))
	channels := w.Actor("project", "")
	configured := apptest.Must(t, channels.ConfigureChannel,
		&pb.ConfigureChannelRequest{Channel: "news", MessageRetention: durationpb.New(time.Hour)})
	if got := configured.GetChannel().GetMessageRetention().AsDuration(); got != time.Hour {
		t.Errorf("the channel keeps messages for %v", got)
	}
	news := w.send(&pb.Message{Target: &pb.Target{To: &pb.Target_Channel{Channel: "news"}}}) // nobody subscribes: it is finished
	other := w.send(&pb.Message{Target: &pb.Target{To: &pb.Target_Channel{Channel: "other"}}})
	w.Clock.Advance(61 * time.Minute)
	w.gone(news)
	if !w.there(other) {
		t.Error("the message of another channel went too")
	}
	apptest.Must(t, channels.ConfigureChannel,
		&pb.ConfigureChannelRequest{Channel: "other", MessageRetention: durationpb.New(time.Second)})
	w.gone(other)
}

func TestMessages_SettingsWakeTheKeeper(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(keep(0))
	sent := w.finish(&pb.Message{})
	w.Clock.Advance(1000 * time.Hour)
	w.turned()
	if !w.there(sent) {
		t.Fatal("a message went that is kept for ever")
	}
	w.as("").Configure(keep(time.Hour))
	w.gone(sent)
}

func TestMessages_RedrivenDeadLetterStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(merged(keep(time.Hour), &pb.SessionSettings{DeadLetterRetention: durationpb.New(2 * time.Hour)}))
	dead := w.die(&pb.Message{})
	w.Clock.Advance(time.Hour)
	apptest.Must(t, w.as("").RedriveDeadLetters, &pb.RedriveDeadLettersRequest{Ids: []string{dead.GetId()}})
	w.Clock.Advance(2 * time.Hour)
	w.turned()
	if !w.there(dead) {
		t.Error("a message went that waits again")
	}
}

func TestMessages_TurnsGoOnAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(keep(time.Hour))
	sent := w.finish(&pb.Message{})
	w.Restart()
	w.Clock.Advance(time.Hour)
	w.gone(sent)
	if got := w.archived(); got[sent.GetRevision()] != 1 {
		t.Errorf("the archive has %v", got)
	}
}
