package sessions

import (
	"encoding/json"
	"slices"
	"time"
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
	KeepDead     time.Duration // dead letters
	FoldCase     bool          // paths of locks are compared without regard to case
	StaleAfter   time.Duration // until a task that its holder does not update is released
	BlockerTime  time.Duration // until a blocker that no agent has acknowledged escalates
	UnknownTypes TypePolicy    // for messages of a type that the catalog does not know
	BadPayloads  TypePolicy    // for payloads that do not match the schema of their type
	Artifact     int64         // bytes of one artifact
	Artifacts    int64         // bytes of all artifacts
}

// A TypePolicy says what the broker does with a message that does not match the catalog. The numbers
// are those of the API and of the table.
type TypePolicy int

// The policies.
const (
	Allow TypePolicy = iota + 1
	Warn
	Refuse
)

// String returns the policy as events spell it.
func (p TypePolicy) String() string { return [...]string{"", "allow", "warn", "refuse"}[p] }

// defaults are the settings of a new session, and of whatever a stored session says nothing of.
func defaults() Settings {
	const day = 24 * time.Hour
	return Settings{
		Ageing: 5 * time.Minute, MailboxLimit: 10_000, MaxAttempts: 3,
		SendRate: 10, SendBurst: 100, MessageLimit: mostMessage, PayloadLimit: mostPayload,
		BreakerLimit: 5, BreakerTime: time.Minute,
		ResponseTime: 10 * time.Minute, EscalateTo: []string{"overseer", "lead", "orchestrator", "project_manager"},
		Directors:    []string{"lead", "overseer", "orchestrator", "project_manager"},
		KeepMessages: 3 * day, KeepEvents: 7 * day, KeepDead: 30 * day,
		StaleAfter: 2 * time.Hour, BlockerTime: 15 * time.Minute,
		UnknownTypes: Warn, BadPayloads: Warn,
		Artifact: mostArtifact, Artifacts: 64 << 30,
	}
}

// A Change says what to change; nil stays as it is, or gets its default.
type Change struct {
	Description  *string
	Ageing       *time.Duration
	MailboxLimit *int64
	MaxAttempts  *int
	SendRate     *float64
	SendBurst    *int
	MessageLimit *int
	PayloadLimit *int
	BreakerLimit *int
	BreakerTime  *time.Duration
	ResponseTime *time.Duration
	EscalateTo   *[]string
	Directors    *[]string
	KeepMessages *time.Duration
	KeepEvents   *time.Duration
	KeepDead     *time.Duration
	FoldCase     *bool
	StaleAfter   *time.Duration
	BlockerTime  *time.Duration
	UnknownTypes *TypePolicy
	BadPayloads  *TypePolicy
	Artifact     *int64
	Artifacts    *int64
}

func (c Change) apply(s *Session) {
	set(&s.Description, c.Description)
	set(&s.Settings.Ageing, c.Ageing)
	set(&s.Settings.MailboxLimit, c.MailboxLimit)
	set(&s.Settings.MaxAttempts, c.MaxAttempts)
	set(&s.Settings.SendRate, c.SendRate)
	set(&s.Settings.SendBurst, c.SendBurst)
	set(&s.Settings.MessageLimit, c.MessageLimit)
	set(&s.Settings.PayloadLimit, c.PayloadLimit)
	set(&s.Settings.BreakerLimit, c.BreakerLimit)
	set(&s.Settings.BreakerTime, c.BreakerTime)
	set(&s.Settings.ResponseTime, c.ResponseTime)
	set(&s.Settings.EscalateTo, c.EscalateTo)
	set(&s.Settings.Directors, c.Directors)
	set(&s.Settings.KeepMessages, c.KeepMessages)
	set(&s.Settings.KeepEvents, c.KeepEvents)
	set(&s.Settings.KeepDead, c.KeepDead)
	set(&s.Settings.FoldCase, c.FoldCase)
	set(&s.Settings.StaleAfter, c.StaleAfter)
	set(&s.Settings.BlockerTime, c.BlockerTime)
	set(&s.Settings.UnknownTypes, c.UnknownTypes)
	set(&s.Settings.BadPayloads, c.BadPayloads)
	set(&s.Settings.Artifact, c.Artifact)
	set(&s.Settings.Artifacts, c.Artifacts)
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// equal reports whether two settings are the same.
func (s Settings) equal(o Settings) bool {
	roles := slices.Equal(s.EscalateTo, o.EscalateTo) && slices.Equal(s.Directors, o.Directors)
	s.EscalateTo, s.Directors, o.EscalateTo, o.Directors = nil, nil, nil, nil
	return roles && s.text() == o.text()
}

// text is what is stored.
func (s Settings) text() string {
	text, _ := json.Marshal(s) // numbers and names always marshal
	return string(text)
}

// parse reads what is stored.
func parse(text string) (Settings, error) {
	s := defaults()
	err := json.Unmarshal([]byte(text), &s)
	return s, err
}

// details is the settings as an event tells them.
func (s Session) details() map[string]any {
	return map[string]any{
		"session":                       s.Name,
		"description":                   s.Description,
		"ageing_seconds":                s.Settings.Ageing.Seconds(),
		"mailbox_limit":                 s.Settings.MailboxLimit,
		"max_attempts":                  s.Settings.MaxAttempts,
		"send_rate":                     s.Settings.SendRate,
		"send_burst":                    s.Settings.SendBurst,
		"message_limit":                 s.Settings.MessageLimit,
		"payload_limit":                 s.Settings.PayloadLimit,
		"breaker_failures":              s.Settings.BreakerLimit,
		"breaker_seconds":               s.Settings.BreakerTime.Seconds(),
		"response_seconds":              s.Settings.ResponseTime.Seconds(),
		"escalate_to":                   s.Settings.EscalateTo,
		"directors":                     s.Settings.Directors,
		"message_retention_seconds":     s.Settings.KeepMessages.Seconds(),
		"event_retention_seconds":       s.Settings.KeepEvents.Seconds(),
		"dead_letter_retention_seconds": s.Settings.KeepDead.Seconds(),
		"fold_case":                     s.Settings.FoldCase,
		"stale_seconds":                 s.Settings.StaleAfter.Seconds(),
		"blocker_escalation_seconds":    s.Settings.BlockerTime.Seconds(),
		"unknown_types":                 s.Settings.UnknownTypes.String(),
		"invalid_payloads":              s.Settings.BadPayloads.String(),
		"artifact_limit":                s.Settings.Artifact,
		"artifact_total_limit":          s.Settings.Artifacts,
	}
}
