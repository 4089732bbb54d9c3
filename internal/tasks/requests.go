package tasks

import (
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/validate"
)

// checkNew checks what the tasks to create have together.
func checkNew(all []*pb.NewTask) error {
	var c validate.Check
	edges, rows := 0, 0
	for i, n := range all {
		if n.GetRole() != "" && n.GetAssignee() != "" {
			c.Fail(field(i, "role"), "cannot be used together with assignee")
		}
		edges += len(n.GetDependsOn())
		rows += rowsOf(n)
	}
	if edges > mostEdges {
		c.Fail("tasks", "have %d dependencies; at most %d are allowed in one call", edges, mostEdges)
	}
	if rows > mostRows {
		c.Fail("tasks", "have too many dependencies, labels and assignees together: the broker would store %d rows, "+
			"and at most %d are allowed in one call; create the tasks in several calls", rows, mostRows)
	}
	return c.Err()
}

// rowsOf is about how many rows the creation of a task stores: the task, its event and texts, its parent,
// its dependencies and labels, and a letter to its assignee.
func rowsOf(n *pb.NewTask) int {
	rows := 4 + len(unique(n.GetDependsOn())) + len(n.GetLabels())
	if n.GetAssignee() != "" {
		rows += letterRows
	}
	return rows
}
