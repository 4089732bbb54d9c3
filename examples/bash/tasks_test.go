package bash_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	pb "brokerd/gen/brokerd/v1"
)

// The worker is killed while it works on the third of four tasks that depend on each other, whose
// command fails once more after that.
func TestTasks_AKilledWorkerContinuesWithItsTask(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	broker, data := startBroker(t)
	register(t, broker, "lead", "lead")
	var chain []*pb.NewTask
	for i := range 4 {
		task := &pb.NewTask{Id: fmt.Sprintf("step-%d", i), Title: "A step", Role: "worker"}
		if i > 0 {
			task.DependsOn = []string{fmt.Sprintf("step-%d", i-1)}
		}
		chain = append(chain, task)
	}
	if _, err := broker.As("lead").Tasks().CreateTasks(ctx, &pb.CreateTasksRequest{Tasks: chain}); err != nil {
		t.Fatal(err)
	}
	const script = `id=$(sed 's/.*"id":"\(step-.\)".*/\1/'); case $id in
		step-2) if mkdir "$0/hung"; then echo > "$0/ready"; sleep 600; elif mkdir "$0/failed"; then exit 3; fi;;
	esac; echo "did $id"`
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	worker := func() *exec.Cmd {
		cmd := exec.CommandContext(ctx, "./tasks.sh", "worker-1", "worker", "sh", "-c", script, dir)
		cmd.Env, cmd.SysProcAttr = environment(t, data, "10s"), &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}
	first := worker()
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(ctx, "cat", ready).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := syscall.Kill(-first.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait() // it was killed
	if out, err := worker().CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, task := range chain {
		answer, err := broker.Tasks().GetTask(ctx, &pb.GetTaskRequest{Id: task.GetId(), View: pb.TaskView_TASK_VIEW_FULL})
		if err != nil {
			t.Fatal(err)
		}
		failed := len(answer.GetHistory())
		if answer.GetTask().GetState() != pb.TaskState_TASK_STATE_DONE || strings.TrimSpace(answer.GetTask().GetResult()) != "did "+task.GetId() || (failed == 1) != (i == 2) {
			t.Errorf("%v with %d failures", answer.GetTask(), failed)
		}
		if i == 2 && answer.GetHistory()[0].GetError() != "sh: exit code 3" {
			t.Errorf("%v", answer.GetHistory())
		}
	}
}
