package command

import "brokerd/cmd/brokerctl/internal/problem"

// MaxPage is the largest page the API gives.
const MaxPage = 1000

// Pages reads page after page until there are limit items, or, with limit 0, no more. A page may be empty
// and have a next one.
func Pages[T any](limit int, get func(size int32, token string) ([]T, string, error)) ([]T, error) {
	if limit < 0 {
		return nil, problem.Usagef("--limit %d: it must not be negative; 0 = all", limit)
	}
	var all []T
	for token := ""; ; {
		size := MaxPage
		if limit > 0 {
			size = min(size, limit-len(all))
		}
		items, next, err := get(int32(size), token)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if token = next; token == "" || limit > 0 && len(all) >= limit {
			return all, nil
		}
	}
}
