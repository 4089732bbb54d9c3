package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// settingsOptions are a session's settings.
type settingsOptions struct {
	description         string
	ageing              time.Duration
	mailboxLimit        int64
	maxAttempts         int32
	sendRate            float64
	sendBurst           int32
	messageLimit        int32
	payloadLimit        int32
	breakerFailures     int32
	breakerTime         time.Duration
	responseTime        time.Duration
	escalateTo          []string
	directors           []string
	messageRetention    time.Duration
	eventRetention      time.Duration
	deadLetterRetention time.Duration
	foldCase            bool
	staleAfter          time.Duration
	blockerEscalation   time.Duration
	unknownTypes        string
	invalidPayloads     string
	artifactLimit       int64
	artifactTotalLimit  int64
	requestID           string
}

// AddFlags adds the options.
func (o *settingsOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.description, "description", "", "one line for people")
	durationVar(f, &o.ageing, "ageing", 0, "waiting this long raises a message's priority by 1; 0: never (new sessions: 5m)")
	f.Int64Var(&o.mailboxLimit, "mailbox-limit", 0, "deliveries that may wait in one mailbox; 0: no limit (new sessions: 10000)")
	f.Int32Var(&o.maxAttempts, "max-attempts", 0, "failed attempts until a message becomes a dead letter (new sessions: 3)")
	f.Float64Var(&o.sendRate, "send-rate", 0, "messages that an agent may send per second; 0: no limit (new sessions: 10)")
	f.Int32Var(&o.sendBurst, "send-burst", 0, "messages that it may send at once after a pause (new sessions: 100)")
	f.Int32Var(&o.messageLimit, "message-limit", 0, "bytes of one message (new sessions: 1048576)")
	f.Int32Var(&o.payloadLimit, "payload-limit", 0, "bytes of one payload (new sessions: 262144)")
	f.Int32Var(&o.breakerFailures, "breaker-failures", 0, "failures in a row that open an agent's circuit breaker; 0: never (new sessions: 5)")
	durationVar(f, &o.breakerTime, "breaker-time", 0, "how long the breaker stays open (new sessions: 1m)")
	durationVar(f, &o.responseTime, "response-time", 0, "time for a response if the message sets none (new sessions: 10m)")
	f.StringArrayVar(&o.escalateTo, "escalate-to", nil, "role that stuck work is escalated to; repeated: the first one with an agent; "+
		"'': none (new sessions: overseer, lead, orchestrator, project_manager)")
	f.StringArrayVar(&o.directors, "director", nil, "role that may send directives; repeatable; '': only operators may "+
		"(new sessions: lead, overseer, orchestrator, project_manager)")
	durationVar(f, &o.messageRetention, "message-retention", 0, "how long finished messages are kept; 0: always (new sessions: 3d)")
	durationVar(f, &o.eventRetention, "event-retention", 0, "how long events are kept; 0: always (new sessions: 7d)")
	durationVar(f, &o.deadLetterRetention, "dead-letter-retention", 0, "how long dead letters are kept; 0: always (new sessions: 30d)")
	durationVar(f, &o.staleAfter, "stale-after", 0, "time until a task that its holder does not update is released; 0: never (new sessions: 2h)")
	durationVar(f, &o.blockerEscalation, "blocker-escalation", 0, "time until a blocker that no agent acknowledges escalates; 0: never (new sessions: 15m)")
	f.StringVar(&o.unknownTypes, "unknown-types", "", "messages of unknown types: allow, warn or refuse (new sessions: warn)")
	f.StringVar(&o.invalidPayloads, "invalid-payloads", "", "payloads that do not match their type: allow, warn or refuse (new sessions: warn)")
	f.Int64Var(&o.artifactLimit, "artifact-limit", 0, "bytes of one artifact (new sessions: 4294967296)")
	f.Int64Var(&o.artifactTotalLimit, "artifact-total-limit", 0, "bytes of all artifacts; 0: no limit (new sessions: 68719476736)")
	f.BoolVar(&o.foldCase, "fold-case", false, "ignore case in the paths of locks; can change while no path is locked")
}

// settingNames returns the names of the options.
func settingNames() []string {
	var names []string
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(settingsOptions).AddFlags(f)
	f.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// settings returns those that were given.
func (o *settingsOptions) settings(cmd *cobra.Command) (*pb.SessionSettings, error) {
	unknown, err := parseEnum("unknown-types", pb.TypePolicy(0).Descriptor(), o.unknownTypes)
	if err != nil {
		return nil, err
	}
	invalid, err := parseEnum("invalid-payloads", pb.TypePolicy(0).Descriptor(), o.invalidPayloads)
	if err != nil {
		return nil, err
	}
	return &pb.SessionSettings{
		Ageing:              durationIfSet(cmd, "ageing", o.ageing),
		MailboxLimit:        ifSet(cmd, "mailbox-limit", o.mailboxLimit),
		MaxAttempts:         ifSet(cmd, "max-attempts", o.maxAttempts),
		SendRate:            ifSet(cmd, "send-rate", o.sendRate),
		SendBurst:           ifSet(cmd, "send-burst", o.sendBurst),
		MessageLimit:        ifSet(cmd, "message-limit", o.messageLimit),
		PayloadLimit:        ifSet(cmd, "payload-limit", o.payloadLimit),
		BreakerFailures:     ifSet(cmd, "breaker-failures", o.breakerFailures),
		BreakerTime:         durationIfSet(cmd, "breaker-time", o.breakerTime),
		ResponseTime:        durationIfSet(cmd, "response-time", o.responseTime),
		EscalateTo:          namesIfSet(cmd, "escalate-to", o.escalateTo),
		Directors:           namesIfSet(cmd, "director", o.directors),
		MessageRetention:    durationIfSet(cmd, "message-retention", o.messageRetention),
		EventRetention:      durationIfSet(cmd, "event-retention", o.eventRetention),
		DeadLetterRetention: durationIfSet(cmd, "dead-letter-retention", o.deadLetterRetention),
		FoldCase:            ifSet(cmd, "fold-case", o.foldCase),
		StaleAfter:          durationIfSet(cmd, "stale-after", o.staleAfter),
		BlockerEscalation:   durationIfSet(cmd, "blocker-escalation", o.blockerEscalation),
		UnknownTypes:        pb.TypePolicy(unknown),
		InvalidPayloads:     pb.TypePolicy(invalid),
		ArtifactLimit:       ifSet(cmd, "artifact-limit", o.artifactLimit),
		ArtifactTotalLimit:  ifSet(cmd, "artifact-total-limit", o.artifactTotalLimit),
	}, nil
}

func durationIfSet(cmd *cobra.Command, flag string, d time.Duration) *durationpb.Duration {
	if !cmd.Flags().Changed(flag) {
		return nil
	}
	return always(d)
}

// namesIfSet leaves out empty names, so that one alone makes the list empty.
func namesIfSet(cmd *cobra.Command, flag string, names []string) *pb.Names {
	if !cmd.Flags().Changed(flag) {
		return nil
	}
	return &pb.Names{Names: slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" })}
}

// A settingRow is a setting as people read it.
type settingRow struct{ name, value string }

func settingRows(s *pb.SessionSettings) []settingRow {
	return []settingRow{
		{"ageing", ageing(s)},
		{"mailbox limit", mailboxLimit(s)},
		{"max attempts", strconv.Itoa(int(s.GetMaxAttempts()))},
		{"send rate", cond(s.GetSendRate() > 0, fmt.Sprintf("%s a second, at once %d", sendRate(s), s.GetSendBurst()), "no limit")},
		{"message limit", fmt.Sprintf("%d bytes", s.GetMessageLimit())},
		{"payload limit", fmt.Sprintf("%d bytes", s.GetPayloadLimit())},
		{"breaker", cond(s.GetBreakerFailures() > 0, fmt.Sprintf("after %d failures, for %s", s.GetBreakerFailures(), shortOf(s.GetBreakerTime())), "never")},
		{"response time", shortOf(s.GetResponseTime())},
		{"escalates to", roles(s.GetEscalateTo(), "no role")},
		{"directors", roles(s.GetDirectors(), "operators only")},
		{"keeps messages", kept(s.GetMessageRetention())},
		{"keeps events", kept(s.GetEventRetention())},
		{"keeps dead letters", kept(s.GetDeadLetterRetention())},
		{"case in lock paths", cond(s.GetFoldCase(), "folded", "kept")},
		{"stale tasks", cond(s.GetStaleAfter().AsDuration() > 0, "after "+shortOf(s.GetStaleAfter()), "never")},
		{"blockers escalate", cond(s.GetBlockerEscalation().AsDuration() > 0, "after "+shortOf(s.GetBlockerEscalation()), "never")},
		{"unknown types", enumOf(s.GetUnknownTypes())},
		{"invalid payloads", enumOf(s.GetInvalidPayloads())},
		{"artifacts", fmt.Sprintf("%s each, %s", size(s.GetArtifactLimit()), artifactTotal(s))},
	}
}

func ageing(s *pb.SessionSettings) string {
	d := s.GetAgeing().AsDuration()
	return cond(d > 0, short(d), "none, strict order")
}

func artifactTotal(s *pb.SessionSettings) string {
	n := s.GetArtifactTotalLimit()
	return cond(n > 0, size(n)+" in all", "no limit in all")
}

func mailboxLimit(s *pb.SessionSettings) string {
	n := s.GetMailboxLimit()
	return cond(n > 0, strconv.FormatInt(n, 10), "none")
}

func sendRate(s *pb.SessionSettings) string {
	rate := s.GetSendRate()
	return cond(rate > 0, strconv.FormatFloat(rate, 'g', -1, 64), "none")
}

func roles(n *pb.Names, none string) string {
	return cond(len(n.GetNames()) > 0, strings.Join(n.GetNames(), ", "), none)
}

func kept(d *durationpb.Duration) string {
	return cond(d.AsDuration() > 0, shortOf(d), "without limit")
}
