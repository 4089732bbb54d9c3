package votes

import (
	"errors"

	"brokerd/internal/store"
)

// A keptVote is a vote as the broker keeps it for a repeated request: without the texts, which the
// rows have. Answers that an earlier version of the broker kept are whole.
type keptVote struct {
	Vote
	Already bool
	Short   bool  `json:",omitempty"`     // without Description and Options
	Counts  []int `json:",omitempty"`     // ballots per option
	Closed  *Vote `json:"Vote,omitempty"` // of a closing that an earlier version kept
}

func keep(c *Closing) keptVote {
	kept := keptVote{Vote: c.Vote, Already: c.Already, Short: true, Counts: c.Vote.counts()}
	kept.Description, kept.Options = "", nil
	return kept
}

// closing returns the vote as it was when it was kept. The description and the options never change.
// If the rows have been removed since, they are absent.
func (k *keptVote) closing(q store.Querier) (Closing, error) {
	c := Closing{Vote: k.Vote, Already: k.Already}
	if k.Closed != nil {
		c.Vote = *k.Closed
	}
	if !k.Short {
		return c, nil
	}
	now, err := scan(q.QueryRow(selectVote, c.Vote.Key, c.Vote.Session))
	if errors.Is(err, store.ErrNoRows) {
		return c, nil
	}
	if err == nil {
		err = readOptions(q, &now)
	}
	if err != nil {
		return c, err
	}
	c.Vote.Description = now.Description
	for i, o := range now.Options {
		if i < len(k.Counts) {
			o.Ballots = k.Counts[i]
		}
		c.Vote.Options = append(c.Vote.Options, o)
	}
	return c, nil
}
