package sessions

import (
	"time"

	"brokerd/internal/msgtype"
)

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
	UnknownTypes *msgtype.Policy
	BadPayloads  *msgtype.Policy
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
