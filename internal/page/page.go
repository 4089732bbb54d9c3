// Package page makes and reads page tokens: opaque to clients, and tied to the list they came from.
package page

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"regexp"

	"brokerd/internal/fault"
)

// defaultSize is the size of a page for which a request names none.
const defaultSize = 100

// Size returns the size of a page that a request wants, 0 = the default.
func Size(n int32) int { return cmp.Or(int(n), defaultSize) }

// Token returns a page token for the named list that carries the position.
func Token(list string, position any) string {
	b, err := json.Marshal([]any{list, position})
	if err != nil {
		panic(err) // positions are plain structs and numbers
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// zero is the escape of U+0000 in JSON, which no text of the broker has: PostgreSQL takes none.
var zero = regexp.MustCompile(`(?:^|[^\\])(?:\\\\)*\\u0000`)

// Parse reads a token that Token made for the named list into position; an empty token leaves position as it is.
// Anything else is Invalid, with the field page_token.
func Parse(list, token string, position any) error {
	if token == "" {
		return nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil && !zero.Match(b) {
		var made string
		if err = json.Unmarshal(b, &[]any{&made, position}); err == nil && Token(made, position) == token && made == list {
			return nil
		}
	}
	return fault.Field("page_token", "was not made by this list; pass next_page_token as it came, or none")
}
