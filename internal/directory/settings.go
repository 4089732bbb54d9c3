package directory

import (
	"encoding/json"
	"slices"
	"time"

	"brokerd/internal/msgtype"
)

// Limits of settings that are their defaults too.
const (
	MostMessage  = 1 << 20   // bytes of one message
	MostPayload  = 256 << 10 // bytes of one payload
	MostArtifact = 4 << 30   // bytes of one artifact
)

// Settings are the rules of a session. Those that are 0 are off.
type Settings struct {
	Ageing       time.Duration // waiting that is worth one level of priority; 0 = strict order
	MailboxLimit int64         // deliveries that may wait in one mailbox
	MaxAttempts  int           // failed attempts until a delivery is a dead letter
	SendRate     float64       // messages that an agent may send a second
	SendBurst    int           // messages that it may send at once
	MessageLimit int           // bytes of one message
	PayloadLimit int           // bytes of one payload
	BreakerLimit int           // failures in a row that open the breaker of an agent
	BreakerTime  time.Duration // how long it stays open
	ResponseTime time.Duration // until when a response is due
	EscalateTo   []string      // roles that the broker notifies of overdue responses and stuck work
	Directors    []string      // roles that may send directives
	KeepMessages time.Duration // finished ones
	KeepEvents   time.Duration
	KeepDead     time.Duration  // dead letters
	FoldCase     bool           // paths of locks are compared without regard to case
	StaleAfter   time.Duration  // until a task that its holder does not update is released
	BlockerTime  time.Duration  // until a blocker that no agent has acknowledged escalates
	UnknownTypes msgtype.Policy // for messages of a type that the catalog does not know
	BadPayloads  msgtype.Policy // for payloads that do not match the schema of their type
	Artifact     int64          // bytes of one artifact
	Artifacts    int64          // bytes of all artifacts
}

// DefaultSettings are the settings of a new session, and of whatever a stored session says nothing of.
func DefaultSettings() Settings {
	const day = 24 * time.Hour
	return Settings{
		Ageing: 5 * time.Minute, MailboxLimit: 10_000, MaxAttempts: 3,
		SendRate: 10, SendBurst: 100, MessageLimit: MostMessage, PayloadLimit: MostPayload,
		BreakerLimit: 5, BreakerTime: time.Minute,
		ResponseTime: 10 * time.Minute, EscalateTo: []string{"overseer", "lead", "orchestrator", "project_manager"},
		Directors:    []string{"lead", "overseer", "orchestrator", "project_manager"},
		KeepMessages: 3 * day, KeepEvents: 7 * day, KeepDead: 30 * day,
		StaleAfter: 2 * time.Hour, BlockerTime: 15 * time.Minute,
		UnknownTypes: msgtype.Warn, BadPayloads: msgtype.Warn,
		Artifact: MostArtifact, Artifacts: 64 << 30,
	}
}

// Equal reports whether two settings are the same.
func (s Settings) Equal(o Settings) bool {
	roles := slices.Equal(s.EscalateTo, o.EscalateTo) && slices.Equal(s.Directors, o.Directors)
	s.EscalateTo, s.Directors, o.EscalateTo, o.Directors = nil, nil, nil, nil
	return roles && s.Text() == o.Text()
}

// Text is what is stored.
func (s Settings) Text() string {
	text, _ := json.Marshal(s) // numbers and names always marshal
	return string(text)
}

// ParseSettings reads what is stored.
func ParseSettings(text string) (Settings, error) {
	s := DefaultSettings()
	err := json.Unmarshal([]byte(text), &s)
	return s, err
}
