// Package nearest finds the names that are most like another one, for error messages and warnings.
package nearest

import "strings"

const (
	most = 3 // names of an answer

	// Limit is how many names a caller should offer: a comparison takes some microseconds.
	Limit = 2000

	// longest is the length in bytes beyond which a wanted name is like no other. A request may have
	// megabytes where a name belongs, and a comparison takes time for each byte.
	longest = 1000
)

// Names returns the names that take the fewest edits to become the wanted one, at most three,
// nearest first. Of names equally near, the first offered comes first. A wanted name of more than
// 1,000 bytes is near to none.
func Names(wanted string, offered []string) []string {
	var found []string
	var distances []int
	if len(wanted) > longest {
		return nil
	}
	for _, name := range offered {
		distance := edits(name, wanted)
		at := len(found)
		for at > 0 && distance < distances[at-1] {
			at--
		}
		if at == most {
			continue
		}
		if len(found) < most {
			found, distances = append(found, ""), append(distances, 0)
		}
		copy(found[at+1:], found[at:])
		copy(distances[at+1:], distances[at:])
		found[at], distances[at] = name, distance
	}
	return found
}

// Hint returns a question for the offered names that the wanted one is probably a misspelling of,
// such as "did you mean builder?". If there are none, it returns the nearest names. It is empty if
// nothing is offered.
func Hint(wanted string, offered []string) string {
	near := Names(wanted, offered)
	alike := 0
	for alike < len(near) && Like(wanted, near[alike]) {
		alike++
	}
	switch {
	case alike > 0:
		return "did you mean " + strings.Join(near[:alike], ", ") + "?"
	case len(near) == 1:
		return "the nearest name is " + near[0]
	case len(near) > 1:
		return "the nearest names are " + strings.Join(near, ", ")
	}
	return ""
}

// Like reports whether one name is probably a misspelling of the other: at most a third of its
// bytes differ.
func Like(wanted, name string) bool { return 3*edits(name, wanted) <= max(len(wanted), len(name)) }

// edits returns how many insertions, deletions and replacements of a byte turn a into b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
