package agents

const (
	nearestNames   = 3
	namesToCompare = 2000 // registered names; comparing takes some microseconds each
)

// nearest gathers the names that are most like another one, nearest first.
type nearest struct {
	found []candidate
}

type candidate struct {
	name  string
	edits int
}

// offer takes a name if it is among the nearest so far. Of names equally near the first offered comes first.
func (n *nearest) offer(name, wanted string) {
	c := candidate{name, edits(name, wanted)}
	at := len(n.found)
	for at > 0 && c.edits < n.found[at-1].edits {
		at--
	}
	if at == nearestNames {
		return
	}
	if len(n.found) < nearestNames {
		n.found = append(n.found, candidate{})
	}
	copy(n.found[at+1:], n.found[at:])
	n.found[at] = c
}

func (n *nearest) names() []string {
	names := make([]string, len(n.found))
	for i, c := range n.found {
		names[i] = c.name
	}
	return names
}

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
