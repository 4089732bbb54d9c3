package people

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
	"brokerd/internal/settings"
)

// settingOptions are the options for a session's description and settings, and more.
func settingOptions(more ...command.Option) []command.Option {
	options := []command.Option{{Field: "description", Usage: "one line for people"}}
	for _, s := range settings.All {
		options = append(options, command.Option{
			Field: "settings." + string(s.Field.Name()), Name: settingFlag(s),
			Kind: settingKind(s), Usage: s.Help(), Zero: true,
		})
	}
	return append(options, more...)
}

// settingFlags returns the names of the options.
func settingFlags() []string {
	names := []string{"description"}
	for _, s := range settings.All {
		names = append(names, settingFlag(s))
	}
	return names
}

// settingFlag returns the name of the option of a setting. The option of a list names one item.
func settingFlag(s settings.Setting) string {
	return prompt.Either(s.Field.Name() == "directors", "director", strings.ReplaceAll(string(s.Field.Name()), "_", "-"))
}

func settingKind(s settings.Setting) command.Kind {
	switch {
	case s.Field.Enum() != nil:
		return command.Kind{Name: "TEXT"}
	case s.Field.Message() == (*pb.Names)(nil).ProtoReflect().Descriptor():
		return command.Kind{Name: words.Role.Name, Words: words.Role.Words, Read: readNames}
	}
	return command.Kind{}
}

// readNames reads a list of names. An empty name alone is an empty list.
func readNames(_ *command.Given, to command.Target, names []string) error {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" })
	to.Set(protoreflect.ValueOfMessage((&pb.Names{Names: names}).ProtoReflect()))
	return nil
}

// settingLines writes the settings as people read them.
func settingLines(l *output.Labels, s *pb.SessionSettings) {
	l.Line("ageing", ageing(s))
	l.Line("mailbox limit", mailboxLimit(s))
	l.Line("max attempts", strconv.Itoa(int(s.GetMaxAttempts())))
	l.Line("send rate", prompt.Either(s.GetSendRate() > 0,
		fmt.Sprintf("%s a second, at once %d", sendRate(s), s.GetSendBurst()), "no limit"))
	l.Line("message limit", fmt.Sprintf("%d bytes", s.GetMessageLimit()))
	l.Line("payload limit", fmt.Sprintf("%d bytes", s.GetPayloadLimit()))
	l.Line("breaker", prompt.Either(s.GetBreakerFailures() > 0,
		fmt.Sprintf("after %d failures, for %s", s.GetBreakerFailures(), output.ShortOf(s.GetBreakerTime())), "never"))
	l.Line("response time", output.ShortOf(s.GetResponseTime()))
	l.Line("escalates to", roles(s.GetEscalateTo(), "no role"))
	l.Line("directors", roles(s.GetDirectors(), "operators only"))
	l.Line("keeps messages", kept(s.GetMessageRetention()))
	l.Line("keeps events", kept(s.GetEventRetention()))
	l.Line("keeps dead letters", kept(s.GetDeadLetterRetention()))
	l.Line("case in lock paths", prompt.Either(s.GetFoldCase(), "folded", "kept"))
	l.Line("stale tasks", after(s.GetStaleAfter()))
	l.Line("blockers escalate", after(s.GetBlockerEscalation()))
	l.Line("unknown types", prompt.Enum(s.GetUnknownTypes()))
	l.Line("invalid payloads", prompt.Enum(s.GetInvalidPayloads()))
	l.Line("artifacts", fmt.Sprintf("%s each, %s", output.Size(s.GetArtifactLimit()), artifactTotal(s)))
}

func ageing(s *pb.SessionSettings) string {
	d := s.GetAgeing().AsDuration()
	return prompt.Either(d > 0, prompt.Duration(d), "none, strict order")
}

func artifactTotal(s *pb.SessionSettings) string {
	n := s.GetArtifactTotalLimit()
	return prompt.Either(n > 0, output.Size(n)+" in all", "no limit in all")
}

func mailboxLimit(s *pb.SessionSettings) string {
	n := s.GetMailboxLimit()
	return prompt.Either(n > 0, strconv.FormatInt(n, 10), "none")
}

func sendRate(s *pb.SessionSettings) string {
	rate := s.GetSendRate()
	return prompt.Either(rate > 0, strconv.FormatFloat(rate, 'g', -1, 64), "none")
}

func roles(n *pb.Names, none string) string {
	return prompt.Either(len(n.GetNames()) > 0, strings.Join(n.GetNames(), ", "), none)
}

func kept(d *durationpb.Duration) string {
	return prompt.Either(d.AsDuration() > 0, output.ShortOf(d), "without limit")
}

func after(d *durationpb.Duration) string {
	return prompt.Either(d.AsDuration() > 0, "after "+output.ShortOf(d), "never")
}
