package app

import (
	"go.uber.org/zap"

	"brokerd/internal/artifacts"
	"brokerd/internal/directory"
	"brokerd/internal/diskguard"
	"brokerd/internal/events"
	"brokerd/internal/gauges"
	"brokerd/internal/metrics"
	"brokerd/internal/retention"
	"brokerd/internal/store"
)

// openArtifacts returns the repository of artifacts. Transfers are counted unless measured is nil.
func openArtifacts(
	c Config, st *store.Store, journal *events.Log, dir *directory.Directory, space *diskguard.Gauge,
	measured *metrics.Metrics, log *zap.Logger,
) (*artifacts.Repository, error) {
	o := artifacts.Options{
		Store: st, Log: journal, Directory: dir, Disk: space, Dir: c.Dir, Clock: c.Clock, Logger: log.Named("artifacts"),
	}
	if measured != nil {
		o.Observer = measured
	}
	return artifacts.New(o)
}

// connectArtifacts gives the artifacts the parts that mention them.
func connectArtifacts(p *parts) {
	p.artifacts.UseMentions(
		gauges.ArtifactMentions,
		p.state.ArtifactMentions,
		p.tasks.ArtifactMentions,
		p.decisions.ArtifactMentions,
		p.handoffs.ArtifactMentions,
	)
}

// artifactPart is the part of an export that has the artifacts.
func artifactPart(r *artifacts.Repository) retention.Part {
	return retention.Part{
		File: "artifacts.jsonl", Kind: "artifacts", Lines: r.Records, Contents: r.Contents, Erase: r.Erase, Forget: r.Forget,
		Look: r.Replaced, Remove: byKey(r.Remove),
	}
}
