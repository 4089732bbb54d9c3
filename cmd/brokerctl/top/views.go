package top

import (
	"context"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
)

// A view is one tab of the screen.
type view struct {
	title, short string
	question     string // that it answers
	none         string // shown without rows
	columns      []table.Column
	// rows returns the rows of a frame and of the loaded data, in the view's own order.
	rows func(s snapshot) []row
	// load reads what is not in the frames; nil = nothing.
	load func(ctx context.Context, broker *client.Client) (any, error)
	// open reads the details of a row; nil = the frame has them.
	open func(ctx context.Context, o opening, r row) ([]section, error)
	// actions returns the actions on rows; there are several only if the view has marks.
	actions func(rows []row, command func(*pb.Call) string) []action
	marks   bool
}

// views are all views, in the order of their keys.
var views = [8]view{attention, team, queues, timeline, conversations, deadLetters, locksAndTurns, work}
