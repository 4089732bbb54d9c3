package top

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// A row is one line of a view.
type row struct {
	key   string // tells rows apart, and stays when the row changes
	cells []cell
	item  proto.Message // what the row shows
	under []row         // rows that belong to it, in their own order
}

// name returns the name of a row in the titles of its panel and its menu.
func (r row) name() string {
	if f, ok := r.item.(*pb.Finding); ok {
		return prompt.OneLine(f.GetSubject())
	}
	return strings.TrimLeft(r.cells[0].text, " └")
}

// A cell is a text and its place in a sorted column: by number, then by text.
type cell struct {
	text string
	by   int64
}

// never is the place of a time that is absent.
const never = math.MaxInt64

func text(s string) cell { return cell{prompt.OneLine(s), 0} }

func number[N int32 | int64](n N) cell { return cell{strconv.FormatInt(int64(n), 10), int64(n)} }

// upTo is a number that the broker counts up to a limit.
func upTo(n, limit int64) cell {
	c := number(n)
	if n >= limit {
		c.text += "+"
	}
	return c
}

func enum(v protoreflect.Enum) cell {
	return cell{jsonform.EnumName(v.Descriptor(), v.Number()), int64(v.Number())}
}

func relative(now time.Time, t *timestamppb.Timestamp) string {
	return prompt.Relative(t.AsTime().Sub(now))
}

// match returns the rows that contain a text, in upper or lower case, in a cell or in a row below.
func match(rows []row, filter string) []row {
	if filter == "" {
		return rows
	}
	filter = strings.ToLower(filter)
	var matching func(r row) bool
	matching = func(r row) bool {
		return slices.ContainsFunc(r.cells, func(c cell) bool {
			return strings.Contains(strings.ToLower(c.text), filter)
		}) || slices.ContainsFunc(r.under, matching)
	}
	var found []row
	for _, r := range rows {
		if matching(r) {
			found = append(found, r)
		}
	}
	return found
}

// order sorts rows by a column, counted from 1; 0 keeps their order.
func order(rows []row, column int, reverse bool) []row {
	rows = slices.Clone(rows)
	if column > 0 {
		slices.SortStableFunc(rows, func(a, b row) int {
			x, y := a.cells[column-1], b.cells[column-1]
			return cmp.Or(cmp.Compare(x.by, y.by), cmp.Compare(strings.ToLower(x.text), strings.ToLower(y.text)))
		})
	}
	if reverse {
		slices.Reverse(rows)
	}
	return rows
}

// flatten returns rows with those below them, which are indented.
func flatten(rows []row, depth int) []row {
	var all []row
	for _, r := range rows {
		if depth > 0 {
			r.cells = slices.Clone(r.cells)
			r.cells[0].text = strings.Repeat("  ", depth-1) + "└ " + r.cells[0].text
		}
		all = append(all, r)
		all = append(all, flatten(r.under, depth+1)...)
	}
	return all
}
