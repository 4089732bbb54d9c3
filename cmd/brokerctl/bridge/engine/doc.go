// Package engine runs a bridge between a folder and a session, whatever the format of the folder. Package bridge says
// how a message crosses exactly once.
//
// Run has one worker for each Part of the folder: for each agent, and one for what belongs to no agent. A worker
// calls its part when the folder changes and when the broker has mail. The parts are those of a Format, which works
// with a Bridge:
//
//   - Folder reads and writes the files.
//   - Roster registers the agents of the folder.
//   - Sender sends a file as a message, or makes the call that the message means.
//   - Inbox, one for each agent, delivers mail as files and acknowledges it.
//   - Rejects moves away what is no message.
//   - State keeps what a bridge must know after a kill.
//   - Health reports what does not succeed.
package engine
