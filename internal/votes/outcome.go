package votes

import "math"

// A Rule is the rule by which an option wins. The numbers are those of the API and of the table.
type Rule int

// The rules.
const (
	Plurality Rule = iota + 1 // the most ballots; several options with the most are a tie
	Majority                  // more than half of the ballots
	Unanimous                 // all ballots
)

// String returns the rule in lower case.
func (r Rule) String() string {
	return [...]string{"", "plurality", "majority", "unanimous"}[r]
}

// An Outcome is the result of a vote. The numbers are those of the API and of the table; 0 is open.
type Outcome int

// The outcomes.
const (
	Winner Outcome = iota + 1
	Tie
	NoMajority
	NoQuorum
)

// String returns the outcome in lower case, as metrics and payloads have it.
func (o Outcome) String() string {
	return [...]string{"open", "winner", "tie", "no_majority", "no_quorum"}[o]
}

// A Quorum is how many ballots a vote needs: a number or, if that is 0, a share of the electors. The
// zero value needs one ballot.
type Quorum struct {
	Ballots int
	Share   float64 // greater than 0, at most 1; 0 = none
}

// fraction is up to which part of a ballot a share needs no further ballot. It is far more than the
// error of a share such as 2/3 as a binary number.
const fraction = 1e-6

// Required returns how many ballots the quorum requires of a number of electors: at least one.
func (q Quorum) Required(electors int) int {
	n := q.Ballots
	if n == 0 {
		n = int(math.Ceil(q.Share*float64(electors) - fraction))
	}
	return max(n, 1)
}

// Count returns the outcome of a vote, and the position of the option that won, -1 if none did.
// electors is the number of those that remain and of those that have left with a ballot. The quorum
// comes first: with fewer ballots than it requires the outcome is NoQuorum, whatever the rule.
func Count(rule Rule, quorum Quorum, electors int, ballots []int) (Outcome, int) {
	cast, most, leader, leaders := 0, 0, -1, 0
	for i, n := range ballots {
		cast += n
		switch {
		case n > most:
			most, leader, leaders = n, i, 1
		case n == most:
			leaders++
		}
	}
	switch {
	case cast < quorum.Required(electors):
		return NoQuorum, -1
	case rule == Plurality && leaders > 1:
		return Tie, -1
	case rule == Majority && 2*most <= cast, rule == Unanimous && most < cast:
		return NoMajority, -1
	}
	return Winner, leader
}
