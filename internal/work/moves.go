package work

import "slices"

// Moves are the calls that each state of a kind permits. A call that it does not permit is refused: an item
// leaves a state in one way, once.
type Moves[S comparable] map[S][]string

// Allows reports whether a state permits a call.
func (m Moves[S]) Allows(state S, call string) bool {
	return slices.Contains(m[state], call)
}
