package directory

// Queries, for a look at how SQLite runs them.
const (
	SelectMatching       = selectMatching
	SelectMatchingOfRole = selectMatchingOfRole
)
