package harness

import (
	"bytes"
	"os"
)

// CheckEvent is the event by which setup asks a hook whether it works. The coding agents have no such event.
const CheckEvent = "BrokerdCheck"

// mostConversation is the size of the largest file of a conversation that Answered searches: 64 MiB.
const mostConversation = 64 << 20

// Answered reports whether the model has gone on after it got the text with a mark. The file of the conversation then
// has the mark before the call of a tool, or, without a call, before the last answer of the model (Claude Code). A call
// of the same answer as the one before is no evidence: the file contains that call before the mark.
func Answered(conversation, call, mark string) bool {
	info, err := os.Stat(conversation)
	if err != nil || !info.Mode().IsRegular() || info.Size() > mostConversation {
		return false
	}
	text, err := os.ReadFile(conversation)
	at := bytes.Index(text, []byte(mark))
	if err != nil || at < 0 {
		return false
	}
	if call == "" {
		return bytes.LastIndex(text, []byte(`"role":"assistant"`)) > at
	}
	return bytes.Index(text, []byte(call)) > at
}
