package setup

import (
	"fmt"
	"strings"
)

// around is how many equal lines a diff shows around a change.
const around = 3

// Diff returns the unified diff of two versions of a file; "" if they are equal. A version that does
// not exist has the name /dev/null.
func Diff(name string, before, after Content) string {
	if before == after {
		return ""
	}
	from, to := "a/"+name, "b/"+name
	if !before.Exists {
		from = "/dev/null"
	}
	if !after.Exists {
		to = "/dev/null"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", from, to)
	steps := compare(lines(before.Text), lines(after.Text))
	for start := 0; start < len(steps); {
		if steps[start].kind == ' ' {
			start++
			continue
		}
		end, quiet := start, 0 // the hunk ends where enough equal lines follow
		for i := start; i < len(steps) && quiet <= 2*around; i++ {
			quiet++
			if steps[i].kind != ' ' {
				end, quiet = i+1, 0
			}
		}
		writeHunk(&b, steps[max(start-around, 0):min(end+around, len(steps))])
		start = end
	}
	return b.String()
}

// diffLine is a line of a diff: ' ' equal, '-' removed, '+' added. from and to are its numbers.
type diffLine struct {
	kind     byte
	text     string
	from, to int
}

// compare returns the lines of both versions in the order of a diff. The changes of setup are few, so
// it compares only the lines between the equal ones at both ends.
func compare(a, b []string) []diffLine {
	head, tail := 0, 0
	for head < min(len(a), len(b)) && a[head] == b[head] {
		head++
	}
	for tail < min(len(a), len(b))-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var steps []diffLine
	i, j := 0, 0
	add := func(kind byte) {
		s := diffLine{kind: kind, from: i + 1, to: j + 1}
		if kind == '+' {
			s.text = b[j]
		} else {
			s.text = a[i]
		}
		if kind != '+' {
			i++
		}
		if kind != '-' {
			j++
		}
		steps = append(steps, s)
	}
	for i < head {
		add(' ')
	}
	common := commonSuffixes(a[head:len(a)-tail], b[head:len(b)-tail])
	for i < len(a)-tail || j < len(b)-tail {
		switch {
		case i < len(a)-tail && j < len(b)-tail && a[i] == b[j]:
			add(' ')
		case j == len(b)-tail || i < len(a)-tail && common[i-head+1][j-head] >= common[i-head][j-head+1]:
			add('-')
		default:
			add('+')
		}
	}
	for i < len(a) {
		add(' ')
	}
	return steps
}

// commonSuffixes returns for each pair of offsets the length of the longest common subsequence of the
// rests of a and b.
func commonSuffixes(a, b []string) [][]int {
	n := make([][]int, len(a)+1)
	for i := range n {
		n[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if n[i][j] = max(n[i+1][j], n[i][j+1]); a[i] == b[j] {
				n[i][j] = n[i+1][j+1] + 1
			}
		}
	}
	return n
}

func writeHunk(b *strings.Builder, steps []diffLine) {
	var counts [2]int
	for _, s := range steps {
		if s.kind != '+' {
			counts[0]++
		}
		if s.kind != '-' {
			counts[1]++
		}
	}
	from, to := steps[0].from, steps[0].to
	if counts[0] == 0 {
		from-- // of an empty range, the line before it counts
	}
	if counts[1] == 0 {
		to--
	}
	fmt.Fprintf(b, "@@ -%d,%d +%d,%d @@\n", from, counts[0], to, counts[1])
	for _, s := range steps {
		fmt.Fprintf(b, "%c%s\n", s.kind, strings.TrimRight(s.text, "\r\n"))
		if !strings.HasSuffix(s.text, "\n") {
			b.WriteString("\\ No newline at end of file\n")
		}
	}
}
