package app

import (
	"go.uber.org/zap"

	"brokerd/internal/artifacts"
	"brokerd/internal/broker"
	"brokerd/internal/decisions"
	"brokerd/internal/disk"
	"brokerd/internal/events"
	"brokerd/internal/handoffs"
	"brokerd/internal/metrics"
	"brokerd/internal/retention"
	"brokerd/internal/state"
	"brokerd/internal/store"
	"brokerd/internal/tasks"
	"brokerd/internal/work"
)

// openArtifacts returns the repository of artifacts. Transfers are counted unless measured is nil.
func openArtifacts(c Config, st *store.Store, journal *events.Log, dir work.Directory, space *disk.Gauge, measured *metrics.Metrics, log *zap.Logger) (*artifacts.Repository, error) {
	o := artifacts.Options{
		Store: st, Log: journal, Directory: dir, Disk: space, Dir: c.Dir, Clock: c.Clock, Logger: log.Named("artifacts"),
	}
	if measured != nil {
		o.Observer = measured
	}
	return artifacts.New(o)
}

// connectArtifacts tells the artifacts what names them.
func connectArtifacts(r *artifacts.Repository, post *broker.Broker, keys *state.Keys, board *tasks.Tasks, verdicts *decisions.Table, deals *handoffs.Desk) {
	r.UseMentions(post.ArtifactMentions, keys.ArtifactMentions, board.ArtifactMentions, verdicts.ArtifactMentions, deals.ArtifactMentions)
}

// artifactPart is the part of an export that has the artifacts.
func artifactPart(r *artifacts.Repository) retention.Part {
	return retention.Part{
		File: "artifacts.jsonl", Kind: "artifacts", Lines: r.Records, Contents: r.Contents, Erase: r.Erase, Forget: r.Forget,
		Look: r.Replaced, Remove: byKey(r.Remove),
	}
}
