// Package bridge synchronises a folder and a session in both directions, for agents that only have
// files. It uses only the API of the broker.
//
//	outbox, mailbox file ──take──► DIR/.bridge/sending ──send──► broker
//	inbox, mailbox file  ◄─rename─ DIR/.bridge/inbox   ◄─ledger── broker ◄──ack── file removed
//
// A message crosses the bridge exactly once in each direction, wherever a SIGKILL hits the bridge.
//
// This package has the command and the table of the formats: package engine does the work, jsonl, maildir and
// agentmessages each know the files of one format, and mailfile reads and writes a message as JSON.
//
// # Folder to broker
//
// Every message of the folder has a key, a UUID. The send carries the key as its request id and, as
// "bridge:KEY", as its correlation id. Before each send, the bridge looks the correlation id up. The
// lookup finds an earlier send for as long as the broker keeps the message (at least 72 h after its
// end), and the request id closes the gap while an earlier call is still in progress.
//
//   - A file that is a message and is then removed (maildir): the bridge first renames it to
//     sending/AGENT/KEY-NAME. The rename is the commitment: the writer may use the name again at
//     once, two equal files are two messages, and a repetition after a crash has the same key. The
//     bridge removes the file after the send.
//
//   - A line of a file that only grows (jsonl): the key is a hash of the line, its file and its
//     MessageId, or its offset if it has none. The position (offset and number of the line, and how
//     often the file has become shorter) is kept in the session's state, and moves after the send.
//
//   - A file that stays in the recipient's inbox (agent-messages): the key is a hash of the sender, the
//     recipient and the message_id. The ledger of the inbox has an entry key:KEY from before the send,
//     and one with the message's id from after it. A file with neither is a new send.
//
// An answer to a decision or handoff, a plan and a handoff are calls and not messages (act). The key is the
// request id of the call. The session's state has the call from before it is made, so a repetition after a crash makes
// the same one, and finds out whether an earlier run has made it if the broker refuses it.
//
// The bridge sends the files of one sender in order of their names, and the lines of a file in
// order. A file that is not complete yet delays the later ones of its sender, up to --settle.
//
// # Broker to folder
//
// The bridge reads each agent's mailbox with Receive, which leaves every delivery unfinished, notices
// too. It takes messages to one agent of a role with Claim, one at a time for each agent, if the folder shows
// when an agent has finished a message.
//
//   - A file per message (maildir): the bridge writes .bridge/inbox/AGENT/NAME and syncs it, adds an
//     entry AGENT/MESSAGE-ID to its ledger in the session's state, and renames the file to the
//     inbox. The entry is the commitment. After a crash, the bridge renames a file that has an entry
//     and removes a file that has none: the broker delivers that message again. An entry whose file
//     is in neither place belongs to a message that the agent has removed, also while no bridge ran:
//     the bridge acknowledges the message and then deletes the entry.
//   - A line per message (jsonl): the file itself is the ledger. Each line that the bridge appends
//     names its message, and the bridge reads the names at its start. It acknowledges a message
//     after the line is complete. If a crash leaves the beginning of such a line, the bridge
//     appends the rest of it.
//
// # Session and folder
//
// The state of the bridge is in the namespace "bridge", below the id of the folder, which is in
// DIR/.bridge/id. A lock on DIR/.bridge/lock refuses a second bridge on the folder. All paths are
// opened below DIR, so that no symbolic link leads out of it.
package bridge
