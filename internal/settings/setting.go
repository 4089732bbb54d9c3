package settings

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/validate"
)

// leastRate is per second. Slower rates would need times that cannot be computed with.
const leastRate = 0.001

// mostRoles is how many roles a setting may have.
const mostRoles = 100

// A Setting is a field of pb.SessionSettings.
type Setting struct {
	Field   protoreflect.FieldDescriptor
	text    string
	initial protoreflect.Value
	check   func(c *validate.Check, field string, v protoreflect.Value) // nil = every value is allowed
}

// Help returns the text with the default.
func (s Setting) Help() string {
	var initial string
	switch v := s.plain(s.initial).(type) {
	case bool:
		return s.text
	case time.Duration:
		initial = validate.Short(v)
	case []string:
		initial = strings.Join(v, ", ")
	default:
		initial = fmt.Sprint(v)
	}
	return s.text + " (new sessions: " + initial + ")"
}

func newSetting(name protoreflect.Name, text string, initial protoreflect.Value) Setting {
	fields := (*pb.SessionSettings)(nil).ProtoReflect().Descriptor().Fields()
	return Setting{Field: fields.ByName(name), text: text, initial: initial}
}

func number(name protoreflect.Name, initial, least, most int64, text string) Setting {
	s := newSetting(name, text, protoreflect.ValueOfInt64(initial))
	if s.Field.Kind() == protoreflect.Int32Kind {
		s.initial = protoreflect.ValueOfInt32(int32(initial))
	}
	s.check = func(c *validate.Check, field string, v protoreflect.Value) {
		c.Between(field, v.Int(), least, most)
	}
	return s
}

// rate allows 0 as well.
func rate(name protoreflect.Name, initial, least, most float64, text string) Setting {
	s := newSetting(name, text, protoreflect.ValueOfFloat64(initial))
	s.check = func(c *validate.Check, field string, v protoreflect.Value) {
		if r := v.Float(); r != 0 && !(r >= least && r <= most) { // so put, it refuses NaN too
			c.Fail(field, "is %v; 0 (no limit), or %v to %.0f is allowed", r, least, most)
		}
	}
	return s
}

func duration(name protoreflect.Name, initial, least, most time.Duration, text string) Setting {
	s := newSetting(name, text, messageValue(durationpb.New(initial)))
	s.check = func(c *validate.Check, field string, v protoreflect.Value) {
		c.Duration(field, v.Message().Interface().(*durationpb.Duration), least, most, 0)
	}
	return s
}

func durationOrZero(name protoreflect.Name, initial, least, most time.Duration, text string) Setting {
	s := newSetting(name, text, messageValue(durationpb.New(initial)))
	s.check = func(c *validate.Check, field string, v protoreflect.Value) {
		d := c.Duration(field, v.Message().Interface().(*durationpb.Duration), 0, most, 0)
		if d > 0 && d < least {
			c.Fail(field, "is %s; 0, or %s to %s is allowed",
				validate.Short(d), validate.Short(least), validate.Short(most))
		}
	}
	return s
}

func roles(name protoreflect.Name, initial []string, text string) Setting {
	s := newSetting(name, text, messageValue(&pb.Names{Names: initial}))
	s.check = func(c *validate.Check, field string, v protoreflect.Value) {
		names := v.Message().Interface().(*pb.Names).GetNames()
		if len(names) > mostRoles {
			c.Fail(field+".names", "has %d entries; at most %d are allowed", len(names), mostRoles)
		}
		for i, n := range names {
			c.Name(fmt.Sprintf("%s.names[%d]", field, i), n)
		}
	}
	return s
}

// flag is off by default.
func flag(name protoreflect.Name, text string) Setting {
	return newSetting(name, text, protoreflect.ValueOfBool(false))
}

// policy is to warn by default.
func policy(name protoreflect.Name, text string) Setting {
	s := newSetting(name, text, protoreflect.ValueOfEnum(pb.TypePolicy_TYPE_POLICY_WARN.Number()))
	s.check = func(c *validate.Check, field string, v protoreflect.Value) {
		if s.Field.Enum().Values().ByNumber(v.Enum()) == nil {
			c.Fail(field, "is %d; 1 (allow), 2 (warn) or 3 (refuse) is allowed", v.Enum())
		}
	}
	return s
}

func messageValue(m proto.Message) protoreflect.Value {
	return protoreflect.ValueOfMessage(m.ProtoReflect())
}
