package tasks

import (
	"math"
	"strconv"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/validate"
)

// checkNew checks the tasks to create.
func checkNew(all []*pb.NewTask) error {
	var c validate.Check
	if len(all) == 0 {
		c.Fail("tasks", "is empty; create at least one task")
	}
	c.Count("tasks", len(all), MostCreated)
	if len(all) > MostCreated {
		return c.Err()
	}
	edges, rows := 0, 0
	for i, n := range all {
		checkTask(&c, i, n)
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

func checkTask(c *validate.Check, i int, n *pb.NewTask) {
	at := func(name string) string { return field(i, name) }
	if n.GetId() != "" {
		c.NewName(at("id"), n.GetId())
	}
	title(c, at("title"), n.GetTitle())
	c.Text(at("description"), n.GetDescription(), maxText)
	c.Labels(at("labels"), n.GetLabels())
	if n.GetPriority() != 0 {
		c.Between(at("priority"), int64(n.GetPriority()), 1, 10)
	}
	c.OptionalName(at("role"), n.GetRole())
	c.OptionalName(at("assignee"), n.GetAssignee())
	if n.GetRole() != "" && n.GetAssignee() != "" {
		c.Fail(at("role"), "cannot be used together with assignee")
	}
	list := capabilities(n)
	c.Count(at("capabilities"), len(list), mostCapabilities)
	names(c, at("capabilities"), list)
	c.Count(at("depends_on"), len(n.GetDependsOn()), mostDependencies)
	names(c, at("depends_on"), n.GetDependsOn())
	c.OptionalName(at("parent"), n.GetParent())
	if n.GetMaxAttempts() != 0 {
		c.Between(at("max_attempts"), int64(n.GetMaxAttempts()), 1, 100)
	}
	if n.GetStaleAfter().AsDuration() != 0 {
		c.Duration(at("stale_after"), n.GetStaleAfter(), shortestStale, longestStale, 0)
	}
	artifacts(c, at("artifacts"), n.GetArtifacts())
}

// names wants names.
func names(c *validate.Check, field string, all []string) {
	for i, s := range all {
		c.Name(field+"["+strconv.Itoa(i)+"]", s)
	}
}

// artifacts wants names of artifacts.
func artifacts(c *validate.Check, field string, all []string) {
	c.Count(field, len(all), mostArtifacts)
	for i, s := range all {
		if s == "" {
			c.Fail(field+"["+strconv.Itoa(i)+"]", "is empty")
		}
		c.Line(field+"["+strconv.Itoa(i)+"]", s, validate.MaxPath)
	}
}

// title wants a title.
func title(c *validate.Check, field, text string) {
	if strings.TrimSpace(text) == "" {
		c.Fail(field, "is empty; a task needs a title")
	}
	c.Line(field, text, maxTitle)
}

// checkUpdate checks a change.
func checkUpdate(c *validate.Check, in *pb.UpdateTaskRequest) {
	if p := in.GetProgress(); math.IsNaN(p) || p < 0 || p > 1 {
		c.Fail("progress", "is %v; 0 to 1 is allowed", p)
	}
	c.Text("note", in.GetNote(), maxNote)
	if block, ok := in.GetBlockChange().(*pb.UpdateTaskRequest_Block); ok {
		if strings.TrimSpace(block.Block) == "" {
			c.Fail("block", "is empty; a reason is required")
		}
		c.Text("block", block.Block, maxNote)
	}
	if in.Title != nil {
		title(c, "title", in.GetTitle())
	}
	c.Text("description", in.GetDescription(), maxText)
	if in.Priority != nil {
		c.Between("priority", int64(in.GetPriority()), 1, 10)
	}
	c.Labels("set_labels", in.GetSetLabels())
	c.Count("remove_labels", len(in.GetRemoveLabels()), validate.MaxLabels)
	for i, k := range in.GetRemoveLabels() {
		c.Line("remove_labels["+strconv.Itoa(i)+"]", k, validate.MaxLabel)
	}
}

// checkList checks the filters of a list.
func checkList(c *validate.Check, in *pb.ListTasksRequest) {
	c.PageSize("page_size", in.GetPageSize())
	c.OptionalName("holder", in.GetHolder())
	c.OptionalName("assignee", in.GetAssignee())
	c.OptionalName("role", in.GetRole())
	c.Labels("labels", in.GetLabels())
	c.OptionalName("parent", in.GetParent())
	c.OptionalName("creator", in.GetCreator())
	for i, s := range in.GetStates() {
		c.Between("states["+strconv.Itoa(i)+"]", int64(s), int64(waiting), int64(cancelled))
	}
	others := in.GetHolder() + in.GetAssignee() + in.GetRole() + in.GetParent() + in.GetCreator() + in.GetPageToken()
	if in.GetClaimable() && (len(in.GetStates()) > 0 || others != "" || in.GetOldestFirst()) {
		c.Fail("claimable", "can be used with labels and page_size only")
	}
}
