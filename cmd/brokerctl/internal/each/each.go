// Package each makes a list of another.
package each

// Of returns what make returns for each item; nil if there are none.
func Of[I, R any](items []I, make func(I) R) []R {
	var all []R
	for _, item := range items {
		all = append(all, make(item))
	}
	return all
}
