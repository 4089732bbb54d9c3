package mcp

import (
	"fmt"
	"strconv"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// taskPage is how many tasks a result lists.
const taskPage = 50

// heldTask returns the id of the task that a call is about: the given one, or the only one that the agent holds.
func heldTask(c *call) (string, error) {
	if c.has("id") {
		return c.arg("id"), nil
	}
	page, err := c.api.ListTasks(c.ctx, &pb.ListTasksRequest{
		Holder: c.name, OldestFirst: true,
		States: []pb.TaskState{pb.TaskState_TASK_STATE_CLAIMED, pb.TaskState_TASK_STATE_BLOCKED},
	})
	if err != nil {
		return "", err
	}
	var ids []string
	for _, t := range page.GetTasks() {
		ids = append(ids, t.GetId())
	}
	switch len(ids) {
	case 0:
		return "", refusef("agent %q holds no task: it has claimed none, or it has lost the claim", c.name)
	case 1:
		return ids[0], nil
	}
	return "", argumentf("agent %q holds %d tasks; name one of %s", c.name, len(ids), prompt.Names(ids, len(ids)))
}

// onlyTask returns the id of the task that the agent holds, if that is all it holds; otherwise "".
func onlyTask(c *call) string {
	answer, err := c.api.GetAgent(c.ctx, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
	if err != nil { // the call itself says why
		return ""
	}
	var tasks []string
	for _, i := range answer.GetHoldings().GetWork() {
		if i.GetKind() == "task" && i.GetRelation() == pb.WorkRelation_WORK_RELATION_HOLDS {
			tasks = append(tasks, i.GetId())
		}
	}
	if len(answer.GetHoldings().GetClaims()) > 0 || len(tasks) != 1 {
		return ""
	}
	return tasks[0]
}

func createTask(c *call) error {
	t := &pb.NewTask{
		Id: c.arg("id"), Title: c.arg("title"), Description: c.arg("text"), Role: c.arg("role"), Assignee: c.arg("assignee"),
		DependsOn: c.args["depends_on"], Parent: c.arg("parent"),
	}
	var err error
	if t.Priority, err = ParsePriority("priority", c.arg("priority")); err != nil {
		return err
	}
	answer, err := c.api.CreateTasks(c.ctx, &pb.CreateTasksRequest{RequestId: c.requestID, Tasks: []*pb.NewTask{t}})
	if err != nil {
		return err
	}
	for _, b := range answer.GetTasks() {
		_ = c.say("created %s, %s", b.GetId(), prompt.Enum(b.GetState()))
	}
	c.warn(answer.GetWarnings())
	return nil
}

func listTasks(c *call) error {
	request := &pb.ListTasksRequest{
		Role: c.arg("role"), Assignee: c.arg("assignee"), Parent: c.arg("parent"), PageSize: taskPage,
	}
	states := pb.TaskState(0).Descriptor()
	for _, given := range c.args["state"] {
		for name := range strings.SplitSeq(given, ",") {
			n, ok := jsonform.ParseEnum(states, strings.TrimSpace(name))
			if !ok {
				return argumentf("state %q is none of %s", name, strings.Join(jsonform.EnumNames(states), ", "))
			}
			request.States = append(request.States, pb.TaskState(n))
		}
	}
	page, err := c.api.ListTasks(c.ctx, request)
	if err != nil {
		return err
	}
	for _, t := range page.GetTasks() {
		fmt.Fprintln(c.w, c.voice.TaskLine(t))
	}
	return c.none(len(page.GetTasks()), "tasks", page.GetNextPageToken())
}

func showTask(c *call) error {
	answer, err := c.api.GetTask(c.ctx, &pb.GetTaskRequest{Id: c.arg("id"), View: pb.TaskView_TASK_VIEW_FULL})
	if err != nil {
		return err
	}
	c.details(answer.GetTask())
	c.details(answer, "task")
	return nil
}

func claimTask(c *call) error {
	wait := c.wait()
	answer, err := c.api.ClaimTask(c.ctx, &pb.ClaimTaskRequest{
		RequestId: c.requestID, Id: c.arg("id"), Wait: duration(wait), Resume: !c.has("id"),
	})
	if err != nil {
		return err
	}
	if answer.GetTask() == nil {
		waited := ""
		if wait > 0 {
			waited = prompt.Duration(wait)
		}
		return nothingf("%s", c.voice.WhyNoTask(answer, waited))
	}
	if answer.GetResumed() {
		inbox, err := c.api.GetInboxSummary(c.ctx, &pb.GetInboxSummaryRequest{})
		if err != nil {
			return err
		}
		if inbox.GetHalted() {
			return nothingf("the agent is halted until a resume; it still holds task %s", answer.GetTask().GetId())
		}
	}
	c.voice.Task(c.w, answer)
	return nil
}

// changeTask changes the task of a call, and says what was done with it.
func changeTask(c *call, done string, change func(*pb.UpdateTaskRequest) error) error {
	id, err := heldTask(c)
	if err != nil {
		return err
	}
	request := &pb.UpdateTaskRequest{RequestId: c.requestID, Id: id}
	if err := change(request); err != nil {
		return err
	}
	answer, err := c.api.UpdateTask(c.ctx, request)
	if err != nil {
		return err
	}
	due := ""
	if done == "updated" && answer.GetStaleAt() != nil {
		due = "; the next update is due " + c.voice.When(answer.GetStaleAt())
	}
	return c.say("%s %s%s", done, answer.GetTask().GetId(), due)
}

func updateTask(c *call) error {
	return changeTask(c, "updated", func(r *pb.UpdateTaskRequest) error {
		r.Note, r.Title = c.optional("text"), c.optional("title")
		if c.has("priority") {
			n, err := ParsePriority("priority", c.arg("priority"))
			if err != nil {
				return err
			}
			r.Priority = &n
		}
		if c.has("progress") {
			f, err := strconv.ParseFloat(c.arg("progress"), 64)
			if err != nil {
				return argumentf("progress %s is no number from 0 to 1", quote(c.arg("progress")))
			}
			r.Progress = &f
		}
		return nil
	})
}

func blockTask(c *call) error {
	return changeTask(c, "blocked", func(r *pb.UpdateTaskRequest) error {
		r.BlockChange = &pb.UpdateTaskRequest_Block{Block: c.arg("text")}
		return nil
	})
}

func unblockTask(c *call) error {
	return changeTask(c, "unblocked", func(r *pb.UpdateTaskRequest) error {
		r.BlockChange = &pb.UpdateTaskRequest_Unblock{Unblock: true}
		return nil
	})
}

func completeTask(c *call) error {
	id, err := heldTask(c)
	if err != nil {
		return err
	}
	answer, err := c.api.CompleteTask(c.ctx, &pb.CompleteTaskRequest{
		RequestId: c.requestID, Id: id, Result: c.arg("text"),
	})
	if err != nil {
		return err
	}
	if answer.GetUnchanged() {
		return c.say("%s was already completed; the result is unchanged", answer.GetTask().GetId())
	}
	var ready []string
	for _, b := range answer.GetReady() {
		ready = append(ready, b.GetId())
	}
	next := ""
	if len(ready) > 0 {
		next = "; now ready: " + prompt.Names(ready, len(ready))
	}
	return c.say("completed %s%s", answer.GetTask().GetId(), next)
}

func failTask(c *call) error {
	id, err := heldTask(c)
	if err != nil {
		return err
	}
	answer, err := c.api.FailTask(c.ctx, &pb.FailTaskRequest{
		RequestId: c.requestID, Id: id, Error: c.arg("text"), Fatal: c.arg("final") == "true",
	})
	if err != nil {
		return err
	}
	again := ""
	if answer.GetDueAt() != nil {
		again = " again " + c.voice.When(answer.GetDueAt())
	}
	b := answer.GetTask()
	return c.say("failed %s, attempt %d: %s%s", b.GetId(), answer.GetAttempts(), prompt.Enum(b.GetState()), again)
}

func releaseTask(c *call) error { return returnTask(c, "released", false) }

func declineTask(c *call) error { return returnTask(c, "declined", true) }

func returnTask(c *call, done string, decline bool) error {
	id, err := heldTask(c)
	if err != nil {
		return err
	}
	answer, err := c.api.ReleaseTask(c.ctx, &pb.ReleaseTaskRequest{
		RequestId: c.requestID, Id: id, Decline: decline, Reason: c.arg("text"),
	})
	if err != nil {
		return err
	}
	return c.say("%s %s", done, answer.GetTask().GetId())
}

func cancelTask(c *call) error {
	answer, err := c.api.CancelTask(c.ctx, &pb.CancelTaskRequest{
		RequestId: c.requestID, Id: c.arg("id"), Reason: c.arg("text"),
	})
	if err != nil {
		return err
	}
	if answer.GetCancelled() == 0 {
		return c.say("%s is cancelled already", c.arg("id"))
	}
	var ids []string
	for _, b := range answer.GetTasks() {
		ids = append(ids, b.GetId())
	}
	return c.say("cancelled %s", prompt.Names(ids, int(answer.GetCancelled())))
}

func retryTask(c *call) error {
	answer, err := c.api.RetryTask(c.ctx, &pb.RetryTaskRequest{RequestId: c.requestID, Id: c.arg("id")})
	if err != nil {
		return err
	}
	return c.say("%s is %s", answer.GetTask().GetId(), prompt.Enum(answer.GetTask().GetState()))
}

func waitTasks(c *call) error {
	if !c.has("id") {
		return argumentf("task wait needs id: one or more tasks")
	}
	request := &pb.WaitTasksRequest{TaskIds: c.args["id"], Wait: duration(mostWait), Mode: pb.WaitMode_WAIT_MODE_ALL}
	if c.has("wait") {
		request.Wait = duration(c.wait())
	}
	if c.has("after") {
		var err error
		if request.AfterRevision, err = strconv.ParseInt(c.arg("after"), 10, 64); err != nil {
			return argumentf("after %s is no revision", quote(c.arg("after")))
		}
	}
	answer, err := c.api.WaitTasks(c.ctx, request)
	if err != nil {
		return err
	}
	for _, b := range answer.GetTasks() {
		fmt.Fprintln(c.w, prompt.OneLine(prompt.TaskBrief(b)))
	}
	switch answer.GetOutcome() {
	case pb.WaitOutcome_WAIT_OUTCOME_DONE:
		return nil
	case pb.WaitOutcome_WAIT_OUTCOME_ATTENTION:
		again := do(&pb.WaitTasksRequest{TaskIds: request.GetTaskIds(), AfterRevision: answer.GetRevision()})
		return refusef("%s; %s continues to wait", prompt.Attention(answer), again)
	}
	return nothingf("not done within %s", prompt.Duration(request.GetWait().AsDuration()))
}
