#!/usr/bin/env bash
# Five agents vote, and one of them leaves before it has voted. Then three workers do the 20 tasks of
# plan.yaml, each after the tasks that it depends on, and one of the workers is killed.
. "$(dirname "$0")/../story.sh"

title "Five agents vote, and three workers do 20 tasks"
team lead voter-1 voter-2 voter-3 voter-4 voter-5

scene "The lead opens a vote"
as lead vote open "Which shop do we build?" books records toys --to role:voter --quorum 60%
vote=v-$(number v-)
begin lead vote get "$vote" --wait "$patience"
as voter-1 next
as voter-1 vote cast "$vote" books --reason "they are easy to send"
as voter-2 vote cast "$vote" records
as voter-3 vote cast "$vote" records
as voter-2 vote cast "$vote" books --reason "voter-1 has convinced me"
as voter-4 vote cast "$vote" books

scene "voter-5 leaves without a vote: all others have voted, and the vote ends"
as voter-5 agent deregister
finish lead

scene "The lead puts the tasks of the book shop on the board"
cp "$here/plan.yaml" .
quietly lead task create -f plan.yaml
as lead task list --oldest

scene "Three workers start; worker-3 is killed in the middle of the first task"
cat >task.sh <<'END'
# Worker 3 is killed before it has written the task down.
if [ "$BROKERD_AGENT" = worker-3 ]; then
  brokerctl --agent '' event follow --after 0 --type agent.failed --limit 1
else
  echo "$BROKERD_TASK_ID" >>done
fi
END
quietly operator agent register worker-1 --role worker
quietly operator agent register worker-2 --role worker
quietly operator agent register worker-3 --role worker --lease 10s
begin worker-3 task work -- sh task.sh
until_event 1 task.claimed
begin worker-1 task work -- sh task.sh
begin worker-2 task work -- sh task.sh
kill_begun worker-3
as lead task wait release --wait "$patience"
end_begun worker-1 worker-2

scene "The board is done"
as lead task list --oldest
done=$(cat done)
export done
check "every task is done, and only the brief needed a second attempt" \
  'length == 20 and all(.state == "done") and [.[] | select(.attempts > 0) | .id] == ["brief"]' task list
check "every task was done once, and after the tasks that it depends on" \
  '(env.done | split("\n")) as $done | ($done | length) == 20 and
   all(.[]; .id as $id | all(.depends_on[]; . as $first | ($done | index($first)) < ($done | index($id))))' task list

the_end --type 'vote.*' --type agent.failed --type task.attempt_failed
