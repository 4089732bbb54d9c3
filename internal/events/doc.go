// Package events is the log: every change the broker makes appends an event in the change's own
// transaction, and the event's number is the change's revision.
//
//	rules ──Append(tx)──► events ──commit──► hub ──wake-up──► follower: read a page, close, send
//	                        ▲                                     │
//	                        └──────────── List, Follow ───────────┘
//
// The hub carries wake-ups and never data. Each follower reads from the database at its own pace,
// so a follower that stops reading does not slow other clients. A commit wakes the followers whose
// filter may match one of its sessions, categories, severities and types; the others advance
// without a read. Revisions grow in commit order, so what a snapshot shows up to its revision is
// complete, and whoever resumes after a revision misses nothing and sees nothing twice.
//
// The row of a sent message is also the event message.sent. All statements that read events read these rows too, in the
// order of the revisions, and the texts of such an event are made when it is read. Retention removes events by raising
// the floor of a session, which hides the events of messages that are still there. If it removes the message first,
// KeepSent adds the event to the table events.
//
// Events that agents publish, and those of the broker's own types that Announced lists, are handed to one
// function in the same transaction, which carries them to whoever subscribes to the channels of events.
//
// A follower may keep a named cursor with the broker. It is saved after a page has been written to
// the stream, so after a crash events may come again but none is left out.
package events
