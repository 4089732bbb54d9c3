package work

import (
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"

	"brokerd/internal/store"
)

// Mentions returns which of the given texts occur in rows of one text column. A text occurs where
// neither a letter nor a digit precedes or follows it, also in the form that it has in JSON. An @
// and a number behind it make it another text: the reference to one version. Mentions closes the
// rows.
func Mentions(rows *store.Rows, texts []string) (map[string]bool, error) {
	defer rows.Close()
	found := map[string]bool{}
	for rows.Next() {
		var in string
		if err := rows.Scan(&in); err != nil {
			return nil, err
		}
		for _, text := range texts {
			if !found[text] && mentioned(in, text) {
				found[text] = true
			}
		}
	}
	return found, rows.Err()
}

func mentioned(in, text string) bool {
	if occurs(in, text) {
		return true
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		return false
	}
	inner := string(quoted[1 : len(quoted)-1])
	return inner != text && occurs(in, inner)
}

func occurs(in, text string) bool {
	for {
		i := strings.Index(in, text)
		if i < 0 || text == "" {
			return false
		}
		before, _ := utf8.DecodeLastRuneInString(in[:i])
		rest := in[i+len(text):]
		after, _ := utf8.DecodeRuneInString(rest)
		version := len(rest) > 1 && rest[0] == '@' && rest[1] >= '0' && rest[1] <= '9'
		if !partOfWord(before) && !partOfWord(after) && !version {
			return true
		}
		in = in[i+1:]
	}
}

func partOfWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
