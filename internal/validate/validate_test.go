package validate_test

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/fault"
	"brokerd/internal/validate"
)

// fields returns the fields that a check refuses.
func fields(check func(*validate.Check)) []string {
	var c validate.Check
	check(&c)
	var e *fault.Error
	if !errors.As(c.Err(), &e) {
		return nil
	}
	var names []string
	for _, v := range e.Violations {
		names = append(names, v.Field)
	}
	return names
}

// accepts checks a table of values: true = accepted.
func accepts[V any](t *testing.T, check func(c *validate.Check, v V), table map[string]struct {
	value V
	ok    bool
}) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(table)) {
		row := table[name]
		if got := fields(func(c *validate.Check) { check(c, row.value) }); (got == nil) != row.ok {
			t.Errorf("%s: %.60v: refused %v", name, row.value, got)
		}
	}
}

type text = map[string]struct {
	value string
	ok    bool
}

func TestCheck_NamesEveryViolation(t *testing.T) {
	got := fields(func(c *validate.Check) {
		c.Name("name", "")
		c.Name("role", "builder")
		c.Between("priority", 11, 1, 10)
		c.Fail("target", "is missing")
	})
	if diff := cmp.Diff([]string{"name", "priority", "target"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestCheck_NamesFieldsOfMessagesByTheirPath(t *testing.T) {
	got := fields(func(c *validate.Check) {
		c.Name("producer", "")
		c.In("message")
		c.Fail("", "is empty")
		c.Name("type", "")
		c.InItem("messages", 3)
		c.Fail("", "is empty")
		c.Line("subject", "a\n", 8)
	})
	want := []string{"producer", "message", "message.type", "messages[3]", "messages[3].subject"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCheck_WithoutViolationIsNoError(t *testing.T) {
	var c validate.Check
	if err := c.Err(); err != nil {
		t.Errorf("%v", err)
	}
}

func TestName(t *testing.T) {
	accepts(t, func(c *validate.Check, s string) { c.Name("name", s) }, text{
		"letters":       {"builder-1", true},
		"a digit first": {"1", true},
		"all marks":     {"a.b_c:d-e", true},
		"128 bytes":     {strings.Repeat("a", 128), true},
		"reserved":      {"all", true},
		"empty":         {"", false},
		"129 bytes":     {strings.Repeat("a", 129), false},
		"a mark first":  {"-a", false},
		"a space":       {"a b", false},
		"a slash":       {"a/b", false},
		"a newline":     {"a\n", false},
		"a NUL":         {"a\x00", false},
		"bad UTF-8":     {"a\xff", false},
		"zero width":    {"a\u200b", false},
		"umlaut":        {"ä", false},
		"a wildcard":    {"a*", false},
	})
}

func TestNewName_RefusesReservedOnes(t *testing.T) {
	accepts(t, func(c *validate.Check, s string) { c.NewName("name", s) }, text{
		"a name":   {"builder", true},
		"all":      {"all", false},
		"capitals": {"ALL", false},
		"everyone": {"everyone", false},
		"system":   {"system", false},
		"empty":    {"", false},
	})
}

func TestOptionalName_MayBeEmpty(t *testing.T) {
	accepts(t, func(c *validate.Check, s string) { c.OptionalName("name", s) }, text{
		"empty": {"", true}, "a name": {"a", true}, "no name": {"a b", false},
	})
}

func TestPattern(t *testing.T) {
	accepts(t, func(c *validate.Check, s string) { c.Pattern("pattern", s) }, text{
		"a name":       {"builder", true},
		"wildcards":    {"build*-?", true},
		"all":          {"*", true},
		"empty":        {"", false},
		"a class":      {"[ab]", false},
		"a mark first": {"-*", false},
		"129 bytes":    {strings.Repeat("*", 129), false},
	})
}

func TestLine(t *testing.T) {
	accepts(t, func(c *validate.Check, s string) { c.Line("subject", s, 8) }, text{
		"empty":      {"", true},
		"text":       {"größe", true},
		"too long":   {"123456789", false},
		"a newline":  {"a\nb", false},
		"a tab":      {"a\tb", false},
		"a DEL":      {"a\x7f", false},
		"C1 control": {"a\u0085", false},
		"bad UTF-8":  {"\xc3", false},
	})
}

func TestText(t *testing.T) {
	accepts(t, func(c *validate.Check, s string) { c.Text("body", s, 8) }, text{
		"lines": {"a\nb\tc", true}, "too long": {"123456789", false}, "a NUL": {"a\x00", false}, "bad UTF-8": {"\xff", false},
	})
}

func TestJSON_HasAtMostHundredLevels(t *testing.T) {
	nested := func(n int) string { return strings.Repeat(`{"a":[`, n/2) + strings.Repeat("]}", n/2) }
	accepts(t, func(c *validate.Check, s string) { c.JSON("payload", s, 1<<20) }, text{
		"100 levels":         {nested(100), true},
		"102 levels":         {nested(102), false},
		"60,000 levels":      {strings.Repeat("[", 60_000) + strings.Repeat("]", 60_000), false},
		"100 levels twice":   {"[" + nested(98) + "," + nested(98) + "]", true},
		"1000 lists":         {"[" + strings.Repeat("[],", 1000) + "[]]", true},
		"brackets in a text": {`["` + strings.Repeat("[", 200) + `\"` + strings.Repeat("{", 200) + `"]`, true},
		"a quoted backslash": {`["\\",` + nested(100) + `]`, false},
	})
}

func TestJSON(t *testing.T) {
	accepts(t, func(c *validate.Check, s string) { c.JSON("payload", s, 20) }, text{
		"nothing": {"", true}, "an object": {`{"a":[1,2]}`, true}, "a number": {"7", true}, "null": {"null", true},
		"half": {`{"a":`, false}, "two": {"1 2", false}, "too long": {`"` + strings.Repeat("a", 20) + `"`, false}, "bad UTF-8": {"\"\xff\"", false},
	})
}

func TestLabels(t *testing.T) {
	many := map[string]string{}
	for i := range validate.MaxLabels {
		many["key"+strconv.Itoa(i)] = ""
	}
	more := maps.Clone(many)
	more["one more"] = ""
	accepts(t, func(c *validate.Check, m map[string]string) { c.Labels("labels", m) }, map[string]struct {
		value map[string]string
		ok    bool
	}{
		"none":           {nil, true},
		"64":             {many, true},
		"65":             {more, false},
		"empty key":      {map[string]string{"": "a"}, false},
		"long key":       {map[string]string{strings.Repeat("k", 257): "a"}, false},
		"long value":     {map[string]string{"k": strings.Repeat("v", 257)}, false},
		"a control byte": {map[string]string{"k": "a\nb"}, false},
	})
}

func TestPageSize_HasADefaultAndALimit(t *testing.T) {
	for in, want := range map[int32]int{0: 100, 1: 1, 1000: 1000} {
		var c validate.Check
		if got := c.PageSize("page_size", in); got != want || c.Err() != nil {
			t.Errorf("%d: %d, %v", in, got, c.Err())
		}
	}
	for _, in := range []int32{-1, 1001, math.MinInt32} {
		if fields(func(c *validate.Check) { c.PageSize("page_size", in) }) == nil {
			t.Errorf("%d is accepted", in)
		}
	}
}

func TestDuration(t *testing.T) {
	check := func(c *validate.Check, d *durationpb.Duration) {
		got := c.Duration("ttl", d, time.Second, time.Hour, time.Minute)
		if c.Err() == nil && d != nil && got != d.AsDuration() || (c.Err() != nil || d == nil) && got != time.Minute {
			t.Errorf("%v is taken as %v", d, got)
		}
	}
	accepts(t, check, map[string]struct {
		value *durationpb.Duration
		ok    bool
	}{
		"none":           {nil, true},
		"least":          {durationpb.New(time.Second), true},
		"most":           {durationpb.New(time.Hour), true},
		"less":           {durationpb.New(time.Second - 1), false},
		"more":           {durationpb.New(time.Hour + 1), false},
		"negative":       {durationpb.New(-time.Second), false},
		"mixed signs":    {&durationpb.Duration{Seconds: 2, Nanos: -1}, false},
		"overflow":       {&durationpb.Duration{Seconds: math.MaxInt64}, false},
		"ten thousand y": {&durationpb.Duration{Seconds: 315_576_000_000}, false},
	})
}

func TestTime(t *testing.T) {
	check := func(c *validate.Check, at *timestamppb.Timestamp) {
		got := c.Time("not_before", at)
		if c.Err() == nil && at != nil && !got.Equal(at.AsTime()) || (c.Err() != nil || at == nil) && !got.IsZero() {
			t.Errorf("%v is taken as %v", at, got)
		}
	}
	accepts(t, check, map[string]struct {
		value *timestamppb.Timestamp
		ok    bool
	}{
		"none":      {nil, true},
		"now":       {timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)), true},
		"1970":      {&timestamppb.Timestamp{}, true},
		"1969":      {&timestamppb.Timestamp{Seconds: -1}, false},
		"2262":      {timestamppb.New(time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)), false},
		"bad nanos": {&timestamppb.Timestamp{Nanos: -1}, false},
		"overflow":  {&timestamppb.Timestamp{Seconds: math.MaxInt64}, false},
	})
}

func TestShort_HasDaysAndNoZeroUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 90 * time.Second: "1m30s", time.Hour: "1h", 24 * time.Hour: "24h",
		7 * 24 * time.Hour: "7d", 49*time.Hour + time.Minute: "2d1h1m", -time.Minute: "-1m",
	} {
		if got := validate.Short(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}
