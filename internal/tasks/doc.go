// Package tasks keeps the tasks of sessions: pieces of work with dependencies, of which exactly one
// agent at a time holds each.
//
//	WAITING ──dependencies DONE──► READY ──claim──► CLAIMED ──complete──► DONE
//	                                 ▲               │  ▲
//	      released, lease ended, ────┘        block  │  │ unblock
//	      retry, stale                               ▼  │
//	                                                BLOCKED (keeps its holder)
//	the last attempt failed or timed out ─► FAILED ──RetryTask──► READY
//	any unfinished state ──CancelTask──► CANCELLED
//
// # Guarantees
//
//   - A task has a holder if and only if it is CLAIMED or BLOCKED. The claim and the change of state
//     are one transaction, so of two claimers one gets the task.
//
//   - The revision of a claim is its fence. Each change by a holder checks that the claim still
//     exists, in the transaction of the change.
//
//   - A task is WAITING if and only if a dependency is not DONE, or the backlog has yet to make it
//     READY. CompleteTask makes the first page of dependents READY in its own transaction.
//
//   - Every change is one event. Messages to the creator and the assignee are part of its transaction.
//
//   - A change of many tasks goes in pages (see work.Backlog): a page changes about 200 rows. A
//     claim ends with the transaction of the first page, even if a later page releases its task.
//
// # Claims
//
// A queue has the unfinished tasks of one assignee or role and one set of capabilities, and exists as
// long as it has one. A claim reads the head of each queue that serves the caller, by an index, and
// takes the best. The time is logarithmic in the number of tasks. A claim with labels reads
// task_labels instead, which has the labels of the READY tasks (see search).
//
//	claim ──► a READY task matches ──► CLAIMED
//	      └─► no task matches ──► waiters, in order of arrival ◄── a task becomes READY
//
// The function of the writer that makes a task READY offers it to the waiters, and the first that
// matches gets it in the same transaction. So no task is READY that matches a waiter, a claim cannot
// overtake a waiter, and one task wakes one call.
//
// The writer keeps the waiters, their unfinished searches, the queues and the number of unfinished tasks
// of each session in memory (see store.Memory): if a function is dropped, so are its changes of these.
package tasks
