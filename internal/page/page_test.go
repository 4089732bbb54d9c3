package page_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"unicode/utf8"

	"brokerd/internal/fault"
	"brokerd/internal/page"
)

type place struct{ Message, Mailbox int64 }

func TestParse_ReadsWhatTokenMade(t *testing.T) {
	var at place
	if err := page.Parse("dead", page.Token("dead", place{4711, 3}), &at); err != nil || at != (place{4711, 3}) {
		t.Errorf("%+v, %v", at, err)
	}
	name := ""
	if err := page.Parse("agents", page.Token("agents", "builder-1"), &name); err != nil || name != "builder-1" {
		t.Errorf("%q, %v", name, err)
	}
}

func TestParse_LeavesThePositionAsItIsWithoutAToken(t *testing.T) {
	at := int64(7)
	if err := page.Parse("messages", "", &at); err != nil || at != 7 {
		t.Errorf("%d, %v", at, err)
	}
}

func TestParse_RefusesWhatThisListDidNotMake(t *testing.T) {
	made := func(json string) string { return base64.RawURLEncoding.EncodeToString([]byte(json)) }
	for name, token := range map[string]string{
		"of another list":        page.Token("agents", 7),
		"with another position":  page.Token("messages", "seven"),
		"without a position":     made(`["messages"]`),
		"with an empty position": made(`["messages",null]`),
		"with too much":          made(`["messages",7,8]`),
		"with spaces":            made(`["messages", 7]`),
		"that is no JSON":        made(`messages`),
		"that is no list":        made(`{"messages":7}`),
		"that is no base64":      "!",
		"that is padded":         page.Token("messages", 7) + "=",
	} {
		var at int64
		if err := page.Parse("messages", token, &at); fault.KindOf(err) != fault.Invalid {
			t.Errorf("a token %s: %v, position %d", name, err, at)
		}
	}
}

func TestParse_RefusesAZeroByte(t *testing.T) {
	name := ""
	for text, fits := range map[string]bool{"a\x00": false, "\x00": false, `\` + "\x00": false, `\u0000`: true, `\\u0000`: true} {
		if err := page.Parse("agents", page.Token("agents", text), &name); (err == nil) != fits {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, token string) {
		var number int64
		var name string
		var at place
		for _, position := range []any{&number, &name, &at} {
			err := page.Parse("list", token, position)
			switch {
			case token == "":
				continue
			case err == nil && page.Token("list", position) != token:
				t.Fatalf("%q was accepted and is written %q", token, page.Token("list", position))
			case err != nil && fault.KindOf(err) != fault.Invalid:
				t.Fatalf("%q: %v", token, err)
			}
		}
	})
}

func FuzzToken(f *testing.F) {
	f.Fuzz(func(t *testing.T, list, name string, message, mailbox int64) {
		if !utf8.ValidString(list) || !utf8.ValidString(name) || strings.Contains(list+name, "\x00") {
			t.Skip() // names are text
		}
		var gotName string
		if err := page.Parse(list, page.Token(list, name), &gotName); err != nil || gotName != name {
			t.Fatalf("%q comes back as %q: %v", name, gotName, err)
		}
		var got place
		if err := page.Parse(list, page.Token(list, place{message, mailbox}), &got); err != nil || got != (place{message, mailbox}) {
			t.Fatalf("%d, %d come back as %+v: %v", message, mailbox, got, err)
		}
		if err := page.Parse(list+"?", page.Token(list, name), &gotName); err == nil {
			t.Fatal("another list takes the token")
		}
	})
}
