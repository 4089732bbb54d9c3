package people

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
	sessionsettings "brokerd/internal/settings"
)

// settingsOptions are a session's settings.
type settingsOptions struct {
	description string
	requestID   string
	values      []settingValue // of settings.All
}

// A settingValue reads the option of a setting.
type settingValue func() (protoreflect.Value, error)

// AddFlags adds the options.
func (o *settingsOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.description, "description", "", "one line for people")
	for _, s := range sessionsettings.All {
		o.values = append(o.values, addSetting(f, s))
	}
}

// addSetting adds the option of a setting.
func addSetting(f *pflag.FlagSet, s sessionsettings.Setting) settingValue {
	name, help := settingFlag(s), s.Help()
	switch s.Field.Kind() {
	case protoreflect.BoolKind:
		return valueOf(f.Bool(name, false, help), protoreflect.ValueOfBool)
	case protoreflect.Int32Kind:
		return valueOf(f.Int32(name, 0, help), protoreflect.ValueOfInt32)
	case protoreflect.Int64Kind:
		return valueOf(f.Int64(name, 0, help), protoreflect.ValueOfInt64)
	case protoreflect.DoubleKind:
		return valueOf(f.Float64(name, 0, help), protoreflect.ValueOfFloat64)
	case protoreflect.EnumKind:
		text := f.String(name, "", help)
		return func() (protoreflect.Value, error) {
			n, err := output.ParseEnum(name, s.Field.Enum(), *text)
			return protoreflect.ValueOfEnum(n), err
		}
	default:
	}
	if s.Field.Message() == (*pb.Names)(nil).ProtoReflect().Descriptor() {
		return valueOf(f.StringArray(name, nil, help), func(names []string) protoreflect.Value {
			names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" }) // one alone = none
			return protoreflect.ValueOfMessage((&pb.Names{Names: names}).ProtoReflect())
		})
	}
	d := new(time.Duration)
	command.DurationVar(f, d, name, 0, help)
	return valueOf(d, func(d time.Duration) protoreflect.Value {
		return protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect())
	})
}

func valueOf[T any](option *T, value func(T) protoreflect.Value) settingValue {
	return func() (protoreflect.Value, error) { return value(*option), nil }
}

// settingFlag returns the name of the option of a setting. The option of a list names one item.
func settingFlag(s sessionsettings.Setting) string {
	if s.Field.Name() == "directors" {
		return "director"
	}
	return strings.ReplaceAll(string(s.Field.Name()), "_", "-")
}

// settingNames returns the names of the options.
func settingNames() []string {
	names := []string{"description"}
	for _, s := range sessionsettings.All {
		names = append(names, settingFlag(s))
	}
	return names
}

// settings returns those that were given.
func (o *settingsOptions) settings(cmd *cobra.Command) (*pb.SessionSettings, error) {
	given := &pb.SessionSettings{}
	for i, s := range sessionsettings.All {
		if !cmd.Flags().Changed(settingFlag(s)) {
			continue
		}
		v, err := o.values[i]()
		if err != nil {
			return nil, err
		}
		given.ProtoReflect().Set(s.Field, v)
	}
	return given, nil
}

// A settingRow is a setting as people read it.
type settingRow struct{ name, value string }

func settingRows(s *pb.SessionSettings) []settingRow {
	return []settingRow{
		{"ageing", ageing(s)},
		{"mailbox limit", mailboxLimit(s)},
		{"max attempts", strconv.Itoa(int(s.GetMaxAttempts()))},
		{"send rate", prompt.Either(s.GetSendRate() > 0, fmt.Sprintf("%s a second, at once %d", sendRate(s), s.GetSendBurst()), "no limit")},
		{"message limit", fmt.Sprintf("%d bytes", s.GetMessageLimit())},
		{"payload limit", fmt.Sprintf("%d bytes", s.GetPayloadLimit())},
		{"breaker", prompt.Either(s.GetBreakerFailures() > 0, fmt.Sprintf("after %d failures, for %s", s.GetBreakerFailures(), output.ShortOf(s.GetBreakerTime())), "never")},
		{"response time", output.ShortOf(s.GetResponseTime())},
		{"escalates to", roles(s.GetEscalateTo(), "no role")},
		{"directors", roles(s.GetDirectors(), "operators only")},
		{"keeps messages", kept(s.GetMessageRetention())},
		{"keeps events", kept(s.GetEventRetention())},
		{"keeps dead letters", kept(s.GetDeadLetterRetention())},
		{"case in lock paths", prompt.Either(s.GetFoldCase(), "folded", "kept")},
		{"stale tasks", prompt.Either(s.GetStaleAfter().AsDuration() > 0, "after "+output.ShortOf(s.GetStaleAfter()), "never")},
		{"blockers escalate", prompt.Either(s.GetBlockerEscalation().AsDuration() > 0, "after "+output.ShortOf(s.GetBlockerEscalation()), "never")},
		{"unknown types", prompt.Enum(s.GetUnknownTypes())},
		{"invalid payloads", prompt.Enum(s.GetInvalidPayloads())},
		{"artifacts", fmt.Sprintf("%s each, %s", output.Size(s.GetArtifactLimit()), artifactTotal(s))},
	}
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
