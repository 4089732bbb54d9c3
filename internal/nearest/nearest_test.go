package nearest_test

import (
	"strings"
	"testing"

	"brokerd/internal/nearest"
)

func TestHint_AsksOnlyForNamesThatAreAlike(t *testing.T) {
	for _, c := range []struct {
		wanted  string
		offered []string
		hint    string
	}{
		{"bulider", []string{"lead", "builder"}, "did you mean builder?"},
		{"builder", []string{"lead", "builder-1", "builder-2"}, "did you mean builder-1, builder-2?"},
		{"nobody", []string{"lead", "builder"}, "the nearest names are lead, builder"},
		{"nobody", []string{"lead"}, "the nearest name is lead"},
		{"nobody", nil, ""},
		{strings.Repeat("b", 1001), []string{"lead", "builder"}, ""},
	} {
		if got := nearest.Hint(c.wanted, c.offered); got != c.hint {
			t.Errorf("%s of %v: %q, want %q", c.wanted, c.offered, got, c.hint)
		}
	}
}
