package app

import (
	"brokerd/internal/artifacts"
	"brokerd/internal/gauges"
	"brokerd/internal/retention"
)

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
func artifactPart(s *artifacts.Service) retention.Part {
	return retention.Part{
		File: "artifacts.jsonl", Kind: "artifacts", Lines: s.Records, Contents: s.Contents, Erase: s.Erase, Forget: s.Forget,
		Look: s.Replaced, Remove: s.Remove,
	}
}
