package bridge

import (
	"context"
	"fmt"
	"slices"

	"brokerd/cmd/brokerctl/bridge/agentmessages"
	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/jsonl"
	"brokerd/cmd/brokerctl/bridge/maildir"
	"brokerd/cmd/brokerctl/internal/each"
)

// kinds returns the table of formats.
func kinds() []engine.Kind { return []engine.Kind{jsonl.Kind(), maildir.Kind(), agentmessages.Kind()} }

// Formats returns the names of the formats.
func Formats() []string {
	return each.Of(kinds(), func(k engine.Kind) string { return k.Name })
}

// Run synchronises a folder of a format, as engine.Run does.
func Run(ctx context.Context, format string, o engine.Options) error {
	i := slices.Index(Formats(), format)
	if i < 0 {
		return fmt.Errorf("%q is not a format; the formats are %v", format, Formats())
	}
	return engine.Run(ctx, kinds()[i], o)
}
