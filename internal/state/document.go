package state

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// Limits of a document.
const (
	MaxDocument     = 4 << 20 // bytes of its entries, each with
	sectionBytes    = 64      // beside its text
	maxContributors = 100     // that are named
)

// Append adds an entry to a document, or makes it with its first. The document belongs to the task
// from then on; nil = as it is. fault.Precondition (NOT_A_DOCUMENT) for a key that is something
// else, and as Directory has it; fault.Exhausted (DOCUMENT_FULL) if it would grow too large, or the
// disk is full.
func (k *Keys) Append(ctx context.Context, c identity.Caller, req idempotency.Request, n Name, text string, task *string) (Entry, error) {
	var e Entry
	var err error
	if k.disk != nil {
		err = k.disk.Check()
	}
	if err == nil {
		err = k.store.Write(ctx, func(tx *store.Tx) error {
			_, err := req.Do(tx, &e, func() (err error) {
				a, err := k.author(tx, c)
				if err != nil {
					return err
				}
				t := turn{Keys: k, tx: tx, author: a}
				e, err = t.extend(n, text, task)
				return err
			})
			return err
		})
	}
	if err != nil {
		return Entry{}, fmt.Errorf("append to state: %w", err)
	}
	return e, nil
}

func (t *turn) extend(n Name, text string, task *string) (Entry, error) {
	r, err := find(t.tx, scopeOf(t.author.Session, n.Namespace), n)
	if err != nil {
		return Entry{}, err
	}
	size := int64(len(text) + sectionBytes)
	if r.present(t.tx.Now()) != 0 {
		if r.kind != Document {
			return Entry{}, fault.New(fault.Precondition, "NOT_A_DOCUMENT", "%s is a value of type %s, and only documents have entries", r.Name, r.kind)
		}
		if r.bytes+size > MaxDocument {
			return Entry{}, fault.New(fault.Exhausted, "DOCUMENT_FULL",
				"the document %s has %d of at most %d bytes: begin another, or delete it", r.Name, r.bytes, MaxDocument).
				With("limit", "document").With("document", strconv.Itoa(MaxDocument))
		}
	}
	if err := t.lapse(&r); err != nil {
		return Entry{}, err
	}
	if task != nil {
		r.task = *task
	}
	revision, err := t.announce(&r, text)
	if err != nil {
		return Entry{}, err
	}
	r.open(revision, t.tx.Now())
	r.kind = Document
	r.entries++
	r.bytes += size
	var by []string
	if r.contributors != "" {
		if err := json.Unmarshal([]byte(r.contributors), &by); err != nil {
			return Entry{}, err
		}
	}
	if len(by) < maxContributors && !slices.Contains(by, t.author.Name) {
		by = append(by, t.author.Name)
		list, err := json.Marshal(by)
		if err != nil {
			return Entry{}, err
		}
		r.contributors = string(list)
	}
	e := t.put(&r, revision, revision, text, r.entries)
	e.Contributors = by
	return e, nil
}

// announce adds the event of an entry to the log, which goes to the channels of events.
func (t *turn) announce(r *row, text string) (int64, error) {
	number := strconv.Itoa(r.entries + 1)
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	e := t.entry(appended)
	e.TaskID = r.task
	e.Summary = clip(t.author.Name+" added entry "+number+" to "+r.String()+": "+clip(strings.Join(strings.Fields(line), " "), 100), 400)
	e.Related = []string{r.String()}
	e.Details = string(appendDetails(r, Document, strconv.FormatInt(r.version+1, 10))) + `,"entry":` + number + `,"bytes":` + strconv.Itoa(len(text)) + `}`
	return t.log.Append(t.tx, e)
}

// clip shortens a text to so many bytes.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}

// Markdown returns entries of a document as one text, with its name above if they begin with the first.
func Markdown(n Name, list []Section) string {
	var b strings.Builder
	for _, s := range list {
		if s.Number == 1 {
			fmt.Fprintf(&b, "# %s\n\n", n.Key)
		}
		fmt.Fprintf(&b, "## %d. %s, %s\n\n%s\n\n", s.Number, s.Author, s.At.UTC().Format("2006-01-02 15:04:05 UTC"), strings.Trim(s.Text, "\n"))
	}
	return b.String()
}
