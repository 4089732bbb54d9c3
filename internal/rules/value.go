package rules

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/validate"
)

// missing returns the violation of an absent field.
func missing(d protoreflect.FieldDescriptor, rule *pb.Rule) string {
	says, hint := "is empty", rule.GetHint()
	switch {
	case d.Message() != nil && !d.IsList():
		says = "is missing"
	case hint != "":
	case d.Kind() == protoreflect.EnumKind:
		hint = choices(d.Enum()) + " is required"
	case rule.GetName() || rule.GetNewName():
		hint = "a name is required"
	}
	if hint == "" {
		return says
	}
	return says + "; " + hint
}

// testOf returns the test of a field's value; nil if it needs none.
func testOf(d protoreflect.FieldDescriptor, rule *pb.Rule) test {
	switch kind := d.Kind(); {
	case d.IsMap():
		if rule.GetLabels() {
			return labels
		}
		return nil
	case kind == protoreflect.StringKind:
		return textTest(d, rule)
	case kind == protoreflect.EnumKind:
		return enumTest(d)
	case d.Message() != nil && d.Message().FullName() == "google.protobuf.Duration":
		return durationTest(d, rule)
	case d.Message() != nil && d.Message().FullName() == "google.protobuf.Timestamp":
		return func(c *validate.Check, name string, v protoreflect.Value) {
			c.Time(name, v.Message().Interface().(*timestamppb.Timestamp))
		}
	case rule.GetPageSize():
		return func(c *validate.Check, name string, v protoreflect.Value) { c.PageSize(name, int32(v.Int())) }
	case kind == protoreflect.DoubleKind && rule != nil:
		return shareTest(float64(rule.GetMin()), float64(rule.GetMax()))
	case rule.GetMin() != 0 || rule.GetMax() != 0 || rule != nil && rule.Min != nil:
		return numberTest(rule)
	}
	return nil
}

func labels(c *validate.Check, name string, v protoreflect.Value) {
	all := make(map[string]string, v.Map().Len())
	v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		all[key.String()] = value.String()
		return true
	})
	c.Labels(name, all)
}

// textTest wants a form, or else a text without NUL, and of a required text and of the item of a list that it is not
// empty.
func textTest(d protoreflect.FieldDescriptor, rule *pb.Rule) test {
	form := formTest(rule)
	empty := ""
	switch {
	case d.IsList():
		if form != nil && !rule.GetName() {
			empty = "is empty"
		}
	case rule.GetRequired() || rule.GetNotBlank():
		empty = missing(d, rule)
	}
	if form == nil {
		form = (*validate.Check).NoZero
	}
	return func(c *validate.Check, name string, v protoreflect.Value) {
		s := v.String()
		switch {
		case empty != "" && (s == "" || rule.GetNotBlank() && strings.TrimSpace(s) == ""):
			c.Fail(name, "%s", empty)
		default:
			form(c, name, s)
		}
	}
}

// formTest returns the test of a text's form; nil if it may have any.
func formTest(rule *pb.Rule) func(c *validate.Check, name, s string) {
	switch {
	case rule.GetName():
		return (*validate.Check).Name
	case rule.GetNewName():
		return (*validate.Check).NewName
	case rule.GetPattern():
		return (*validate.Check).Pattern
	case rule.GetLine() > 0:
		return func(c *validate.Check, name, s string) { c.Line(name, s, int(rule.GetLine())) }
	case rule.GetText() > 0:
		return func(c *validate.Check, name, s string) { c.Text(name, s, int(rule.GetText())) }
	case rule.GetJson() > 0:
		return func(c *validate.Check, name, s string) { c.JSON(name, s, int(rule.GetJson())) }
	}
	return nil
}

// enumTest wants a known value, which is not 0 if it is the item of a list.
func enumTest(d protoreflect.FieldDescriptor) test {
	known, what, of := d.Enum().Values(), words(d.Enum()), choices(d.Enum())
	return func(c *validate.Check, name string, v protoreflect.Value) {
		if n := v.Enum(); known.ByNumber(n) == nil || n == 0 && d.IsList() {
			c.Fail(name, "%d is no %s: %s", n, what, of)
		}
	}
}

// words returns the name of an enum in words, such as agent status.
func words(d protoreflect.EnumDescriptor) string {
	var b strings.Builder
	for i, r := range string(d.Name()) {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// choices returns the values of an enum without its prefix, such as FULL or NORMAL.
func choices(d protoreflect.EnumDescriptor) string {
	prefix := strings.ToUpper(strings.ReplaceAll(words(d), " ", "_")) + "_"
	var all []string
	for i := range d.Values().Len() {
		if v := d.Values().Get(i); v.Number() != 0 {
			all = append(all, strings.TrimPrefix(string(v.Name()), prefix))
		}
	}
	last := len(all) - 1
	if last == 0 {
		return all[0]
	}
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

func shareTest(least, most float64) test {
	return func(c *validate.Check, name string, v protoreflect.Value) {
		if f := v.Float(); !(f >= least && f <= most) { // a NaN is neither
			c.Fail(name, "is %v; %v to %v is allowed", f, least, most)
		}
	}
}

func numberTest(rule *pb.Rule) test {
	least := rule.GetMin()
	if rule.Max == nil {
		return func(c *validate.Check, name string, v protoreflect.Value) {
			switch n := v.Int(); {
			case n >= least:
			case least == 0:
				c.Fail(name, "is negative")
			default:
				c.Fail(name, "is %d; the least is %d", n, least)
			}
		}
	}
	return func(c *validate.Check, name string, v protoreflect.Value) {
		c.Between(name, v.Int(), least, rule.GetMax())
	}
}

func durationTest(d protoreflect.FieldDescriptor, rule *pb.Rule) test {
	if rule.GetLongest() == "" {
		return nil
	}
	shortest, longest := Duration(d, rule.GetShortest()), Duration(d, rule.GetLongest())
	least := shortest
	if rule.GetOrZero() {
		least = 0
	}
	return func(c *validate.Check, name string, v protoreflect.Value) {
		n := c.Found()
		if took := c.Duration(name, v.Message().Interface().(*durationpb.Duration), least, longest, 0); c.Found() == n &&
			took > 0 && took < shortest {
			c.Fail(name, "is %s; 0, or %s to %s is allowed", validate.Short(took), validate.Short(shortest), validate.Short(longest))
		}
	}
}

// Duration reads the bound of a duration's field, such as 12h or 7d; empty = 0. It panics if the text is none.
func Duration(d protoreflect.FieldDescriptor, text string) time.Duration {
	if text == "" {
		return 0
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil {
			return time.Duration(n) * 24 * time.Hour
		}
	}
	took, err := time.ParseDuration(text)
	if err != nil {
		panic(fmt.Sprintf("the rule of %s: %v", d.FullName(), err))
	}
	return took
}
