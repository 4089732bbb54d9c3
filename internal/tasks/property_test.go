package tasks_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A naiveTask is a task in the model.
type naiveTask struct {
	state    pb.TaskState
	needs    []string
	parent   string
	priority int32
	role     string
	assignee string
	holder   string
	attempts int32
	delayed  bool // by the backoff of a failed attempt; the clock of the test does not move
}

// A naiveBoard is the model: it looks through all tasks for everything.
type naiveBoard struct {
	order []string // of creation
	tasks map[string]*naiveTask
	roles map[string]string // of the registered agents
}

func (b *naiveBoard) claimable(agent string) string {
	best := ""
	for _, id := range b.order {
		if b.serves(id, agent) && b.tasks[id].state == ready && !b.tasks[id].delayed && (best == "" || b.tasks[id].priority > b.tasks[best].priority) {
			best = id
		}
	}
	return best
}

func (b *naiveBoard) serves(id, agent string) bool {
	t := b.tasks[id]
	return (t.assignee == "" || t.assignee == agent) && (t.role == "" || t.role == b.roles[agent])
}

// settle makes tasks READY whose dependencies are DONE.
func (b *naiveBoard) settle() {
	for _, t := range b.tasks {
		if t.state == waiting && !slices.ContainsFunc(t.needs, func(n string) bool { return b.tasks[n].state != done }) {
			t.state = ready
		}
	}
}

// end ends a claim.
func (b *naiveBoard) end(id string, state pb.TaskState) {
	b.tasks[id].state, b.tasks[id].holder = state, ""
}

// miss counts the attempt of a claim that has failed.
func (b *naiveBoard) miss(id string, fatal, delayed bool) {
	t := b.tasks[id]
	t.attempts++
	if fatal || t.attempts >= 3 {
		b.end(id, failed)
		return
	}
	b.end(id, ready)
	t.delayed = delayed
}

// cascade returns a task with its unfinished dependents and subtasks.
func (b *naiveBoard) cascade(id string) map[string]bool {
	all := map[string]bool{id: true}
	for grown := true; grown; {
		grown = false
		for _, other := range b.order {
			t := b.tasks[other]
			if !all[other] && t.state < done && (all[t.parent] || slices.ContainsFunc(t.needs, func(n string) bool { return all[n] })) {
				all[other], grown = true, true
			}
		}
	}
	return all
}

// TestTasks_BehaveAsTheNaiveModel makes random calls and compares all tasks after each.
func TestTasks_BehaveAsTheNaiveModel(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	names := []string{"ann", "bob", "cleo"}
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		session := fmt.Sprintf("s%d", run)
		o := d.Root()
		apptest.Must(rt, o.CreateSession, &pb.CreateSessionRequest{Name: session})
		lead := d.Actor(session, "")
		agents := map[string]*apptest.Actor{}
		b := &naiveBoard{tasks: map[string]*naiveTask{}, roles: map[string]string{"ann": "x", "bob": "y", "cleo": "x"}}
		for _, name := range names {
			agents[name] = d.Actor(session, name)
			register(agents[name], b.roles[name])
		}
		who := func(rt *rapid.T) string { return rapid.SampledFrom(names).Draw(rt, "agent") }
		some := func(rt *rapid.T) string {
			if len(b.order) == 0 {
				rt.Skip("there is no task")
			}
			return rapid.SampledFrom(b.order).Draw(rt, "task")
		}
		// agree wants a call to succeed exactly if the model permits it.
		agree := func(rt *rapid.T, permitted bool, err error) bool {
			if permitted != (err == nil) {
				rt.Fatalf("the model permits it: %v; the broker: %v", permitted, err)
			}
			return permitted
		}
		holds := func(id, agent string) bool {
			return b.tasks[id].holder == agent && (b.tasks[id].state == claimed || b.tasks[id].state == blocked)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"create": func(rt *rapid.T) {
				id := fmt.Sprintf("t%d", len(b.order))
				n := &naiveTask{state: waiting, priority: rapid.Int32Range(4, 6).Draw(rt, "priority")}
				if len(b.order) > 0 {
					n.needs = slices.Compact(slices.Sorted(slices.Values(rapid.SliceOfN(rapid.SampledFrom(b.order), 0, 2).Draw(rt, "needs"))))
					if rapid.Bool().Draw(rt, "part") {
						n.parent = rapid.SampledFrom(b.order).Draw(rt, "parent")
					}
				}
				switch rapid.IntRange(0, 3).Draw(rt, "for") {
				case 0:
					n.role = rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "role")
				case 1:
					n.assignee = who(rt)
				}
				createAll(lead, &pb.NewTask{Id: id, Title: id, DependsOn: n.needs, Parent: n.parent, Priority: n.priority, Role: n.role, Assignee: n.assignee})
				b.order, b.tasks[id] = append(b.order, id), n
				b.settle()
			},
			"claim": func(rt *rapid.T) {
				name := who(rt)
				best := b.claimable(name)
				if got := claim(agents[name]); got != best {
					rt.Fatalf("%s claimed %q, in the model %q", name, got, best)
				}
				if best != "" {
					b.tasks[best].state, b.tasks[best].holder = claimed, name
				}
			},
			"claim one": func(rt *rapid.T) {
				name, id := who(rt), some(rt)
				task := b.tasks[id]
				permitted := holds(id, name) || task.state == ready && !task.delayed && b.serves(id, name)
				if agree(rt, permitted, apptest.Err(agents[name].ClaimTask(agents[name].Ctx, &pb.ClaimTaskRequest{Id: id}))) && task.state == ready {
					task.state, task.holder = claimed, name
				}
			},
			"complete": func(rt *rapid.T) {
				name, id := who(rt), some(rt)
				permitted := holds(id, name) || b.tasks[id].state == done && b.tasks[id].holder == name
				if agree(rt, permitted, apptest.Err(agents[name].CompleteTask(agents[name].Ctx, &pb.CompleteTaskRequest{Id: id}))) {
					b.tasks[id].state = done
					b.settle()
				}
			},
			"fail": func(rt *rapid.T) {
				name, id, fatal := who(rt), some(rt), rapid.Bool().Draw(rt, "fatal")
				if agree(rt, holds(id, name), apptest.Err(agents[name].FailTask(agents[name].Ctx, &pb.FailTaskRequest{Id: id, Fatal: fatal}))) {
					b.miss(id, fatal, true)
				}
			},
			"release": func(rt *rapid.T) {
				name, id := who(rt), some(rt)
				if agree(rt, holds(id, name), apptest.Err(agents[name].ReleaseTask(agents[name].Ctx, &pb.ReleaseTaskRequest{Id: id}))) {
					b.end(id, ready)
				}
			},
			"decline": func(rt *rapid.T) {
				name, id := who(rt), some(rt)
				permitted := b.tasks[id].assignee == name && b.tasks[id].state < done
				err := apptest.Err(agents[name].ReleaseTask(agents[name].Ctx, &pb.ReleaseTaskRequest{Id: id, Decline: true, Reason: "no"}))
				if agree(rt, permitted, err) {
					if b.tasks[id].assignee = ""; b.tasks[id].holder == name {
						b.end(id, ready)
					}
				}
			},
			"block": func(rt *rapid.T) {
				name, id := who(rt), some(rt)
				err := apptest.Err(agents[name].UpdateTask(agents[name].Ctx, &pb.UpdateTaskRequest{Id: id, BlockChange: &pb.UpdateTaskRequest_Block{Block: "why"}}))
				if agree(rt, holds(id, name), err) {
					b.tasks[id].state = blocked
				}
			},
			"unblock": func(rt *rapid.T) {
				name, id := who(rt), some(rt)
				err := apptest.Err(agents[name].UpdateTask(agents[name].Ctx, &pb.UpdateTaskRequest{Id: id, BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}}))
				if agree(rt, holds(id, name) && b.tasks[id].state == blocked, err) {
					b.tasks[id].state = claimed
				}
			},
			"cancel": func(rt *rapid.T) {
				id, cascade := some(rt), rapid.Bool().Draw(rt, "cascade")
				state := b.tasks[id].state
				if agree(rt, state != done && state != failed, apptest.Err(lead.CancelTask(lead.Ctx, &pb.CancelTaskRequest{Id: id, Cascade: cascade}))) {
					concerned := map[string]bool{id: true}
					if cascade {
						concerned = b.cascade(id)
					}
					for each := range concerned {
						b.end(each, cancelled)
					}
				}
			},
			"retry": func(rt *rapid.T) {
				id := some(rt)
				if agree(rt, b.tasks[id].state == failed, apptest.Err(lead.RetryTask(lead.Ctx, &pb.RetryTaskRequest{Id: id}))) {
					b.end(id, ready)
					b.tasks[id].attempts, b.tasks[id].delayed = 0, false
				}
			},
			"deregister": func(rt *rapid.T) {
				name := who(rt)
				apptest.Must(rt, agents[name].DeregisterAgent, &pb.DeregisterAgentRequest{})
				register(agents[name], b.roles[name])
				for _, id := range b.order {
					if holds(id, name) {
						b.miss(id, false, false)
					}
					if b.tasks[id].assignee == name && b.tasks[id].state < done {
						b.tasks[id].assignee = ""
					}
				}
			},
			"": func(rt *rapid.T) {
				out := apptest.Must(rt, lead.ListTasks, &pb.ListTasksRequest{OldestFirst: true, PageSize: 1000})
				var got, wanted strings.Builder
				for _, task := range out.GetTasks() {
					fmt.Fprintf(&got, "%s %v %s %d %q %t\n", task.GetId(), task.GetState(), task.GetHolder(), task.GetAttempts(), task.GetAssignee(), task.GetDueAt() != nil)
				}
				for _, id := range b.order {
					task := b.tasks[id]
					fmt.Fprintf(&wanted, "%s %v %s %d %q %t\n", id, task.state, task.holder, task.attempts, task.assignee, task.state == ready && task.delayed)
				}
				if got.String() != wanted.String() {
					rt.Fatalf("the broker has\n%s, the model\n%s", got.String(), wanted.String())
				}
			},
		})
		apptest.Must(rt, o.CloseSession, &pb.CloseSessionRequest{Name: session})
	})
}
