package events_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"brokerd/internal/events"
	"brokerd/internal/testkit"
)

// The list in the documentation is what goes to the channels of events, and nothing else of what its table has.
func TestAnnounced_IsWhatTheDocumentationLists(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/events.md")
	testkit.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "those of these types:")
	list, _, _ := strings.Cut(rest, "Such a message")
	listed := map[string]bool{}
	name := regexp.MustCompile("`([a-z]+\\.[a-z_]+)`")
	for _, m := range name.FindAllStringSubmatch(list, -1) {
		listed[m[1]] = true
	}
	if len(listed) < 10 {
		t.Fatalf("the documentation lists %v", listed)
	}
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllStringSubmatch(string(text), -1) {
		for _, m := range name.FindAllStringSubmatch(row[1], -1) {
			if events.Announced(m[1]) != listed[m[1]] {
				t.Errorf("%s: announced %v, documented %v", m[1], events.Announced(m[1]), listed[m[1]])
			}
			if !events.Reserved(m[1]) {
				t.Errorf("others may publish %s", m[1])
			}
		}
	}
	for kind := range listed {
		if !events.Announced(kind) {
			t.Errorf("%s is listed, and does not go to channels", kind)
		}
	}
}
