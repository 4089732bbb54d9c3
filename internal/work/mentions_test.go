package work_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"brokerd/internal/work"
)

func TestTexts_OccurWhereNoWordContinuesThem(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0f", 32)
	texts := []string{"docs/plan.md", "docs/plan.md@2", "README", "_part", "größe.txt", `a"b`, hash}
	for in, want := range map[string][]string{
		"":                        nil,
		"see docs/plan.md.":       {"docs/plan.md"},
		"docs/plan.md":            {"docs/plan.md"},
		"old/docs/plan.md":        {"docs/plan.md"},
		"mydocs/plan.md":          nil,
		"docs/plan.mdx":           nil,
		"docs/plan.md@2":          {"docs/plan.md@2"},
		"docs/plan.md@21":         nil,
		"docs/plan.md@x":          {"docs/plan.md"},
		"docs/docs/plan.md":       {"docs/plan.md"},
		"README README.md":        {"README"},
		"READMEs":                 nil,
		"x_part":                  nil,
		"x _part, __part":         {"_part"},
		"die größe.txt ist":       {"größe.txt"},
		"diegröße.txt":            nil,
		`{"file": "a\"b"}`:        {`a"b`},
		`a"b`:                     {`a"b`},
		"sha256:" + hash:          {hash},
		hash + "0":                nil,
		"\xff" + "docs/plan.md":   {"docs/plan.md"},
		"README@2 docs/plan.md@2": {"docs/plan.md@2"},
	} {
		found := work.NewTexts(texts)
		found.Search(in)
		if got := slices.Sorted(maps.Keys(found.Found())); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
