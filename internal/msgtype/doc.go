// Package msgtype knows the types of messages: their names, the spellings of a name, and the
// schemas of their payloads. It has the built-in types; a session can add others, in a Set.
//
//	spelling ──Fold──► snake_case ──names and aliases──► canonical name
//	ShutdownRequest     shutdown_request                  shutdown_request
//	task.completed      task_completed                    task_complete
//	Deploy-Done         deploy_done                       deploy_done (unknown)
//
// # Events
//
// Published events and the channels event/TYPE use the built-in names and Fold. The broker's own
// event types have a dot, such as task.completed, and keep it. EventTypes lists what a filter for an
// event type finds.
package msgtype
