package work

import (
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"brokerd/internal/store"
)

// How much one call of Mentions reads, about.
const (
	mentionRows  = 1000
	mentionBytes = 1 << 20
)

// Texts are looked for in the data of features. A text occurs where neither a letter nor a digit precedes
// or follows it, also in the form that it has in JSON. An @ and a number behind it make it another text:
// the reference to one version. Texts are for one goroutine.
type Texts struct {
	list  []string
	forms map[string][]form // by the word that they begin with; empty = with none
	found map[string]bool
}

// A form is a text as it occurs.
type form struct{ text, as string }

// NewTexts returns texts of which none is found yet.
func NewTexts(list []string) *Texts {
	t := &Texts{list: list, forms: map[string][]form{}, found: map[string]bool{}}
	for _, text := range list {
		t.add(form{text, text})
		quoted, _ := json.Marshal(text) // strings always marshal
		if as := string(quoted[1 : len(quoted)-1]); as != text {
			t.add(form{text, as})
		}
	}
	return t
}

func (t *Texts) add(f form) {
	if f.as != "" {
		word := f.as[:wordAt(f.as, 0)]
		t.forms[word] = append(t.forms[word], f)
	}
}

// List returns all texts.
func (t *Texts) List() []string { return t.list }

// Find notes that a text occurs.
func (t *Texts) Find(text string) { t.found[text] = true }

// Found returns the texts that occur.
func (t *Texts) Found() map[string]bool { return t.found }

// Search finds the texts that occur in another text.
func (t *Texts) Search(in string) {
	for _, f := range t.forms[""] {
		for at := 0; ; {
			i := strings.Index(in[at:], f.as)
			if i < 0 {
				break
			}
			before, _ := utf8.DecodeLastRuneInString(in[:at+i])
			t.occurs(f, in, at+i, !partOfWord(before))
			at += i + 1
		}
	}
	for at := 0; at < len(in); {
		end := wordAt(in, at)
		if end == at {
			_, size := utf8.DecodeRuneInString(in[at:])
			at += size
			continue
		}
		for _, f := range t.forms[in[at:end]] {
			t.occurs(f, in, at, true)
		}
		at = end
	}
}

// occurs finds a form if it stands at a place, which begins may say to be the beginning of a text.
func (t *Texts) occurs(f form, in string, at int, begins bool) {
	if !begins || t.found[f.text] || !strings.HasPrefix(in[at:], f.as) {
		return
	}
	rest := in[at+len(f.as):]
	after, _ := utf8.DecodeRuneInString(rest)
	version := len(rest) > 1 && rest[0] == '@' && rest[1] >= '0' && rest[1] <= '9'
	if !partOfWord(after) && !version {
		t.found[f.text] = true
	}
}

// wordAt returns the end of the letters and digits from a place on.
func wordAt(in string, at int) int {
	for at < len(in) {
		r, size := rune(in[at]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(in[at:])
		}
		if !partOfWord(r) {
			break
		}
		at += size
	}
	return at
}

func partOfWord(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	}
	return unicode.IsLetter(r) || unicode.IsDigit(r)
}

// Mentions searches rows with a key and a text, in the order of the keys: about a page of them. It
// returns the key of the last row, after which the next page begins, and whether there may be more. The
// query returns at most 1,000 rows. Mentions closes them.
func Mentions(rows *store.Rows, after int64, texts *Texts) (last int64, more bool, err error) {
	defer rows.Close()
	last = after
	n, bytes := 0, 0
	for bytes < mentionBytes && rows.Next() {
		var in string
		if err := rows.Scan(&last, &in); err != nil {
			return after, false, err
		}
		texts.Search(in)
		n++
		bytes += len(in)
	}
	return last, n == mentionRows || bytes >= mentionBytes, rows.Close()
}

// ArtifactMentions finds which of the texts the parts "content" of a session's items contain, as Mentions: of those
// items that have changed after a revision.
func (t *Table[T]) ArtifactMentions(
	q store.Querier, session, after int64, texts *Texts,
) (last int64, more bool, err error) {
	rows := q.Query(selectContents, session, t.Number, after, mentionRows)
	defer rows.Close()
	n, bytes := 0, 0
	for last = after; bytes < mentionBytes && rows.Next(); n++ {
		var body []byte
		if err := rows.Scan(&last, &body); err != nil {
			return after, false, err
		}
		content := newItem[T]()
		if err := proto.Unmarshal(body, content); err != nil { // what can be read of it counts
			texts.Search(string(body))
		}
		textsIn(content.ProtoReflect(), texts.Search)
		bytes += len(body)
	}
	return last, n == mentionRows || bytes >= mentionBytes, rows.Close()
}
