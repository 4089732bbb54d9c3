package command

import (
	"fmt"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/prompt"
)

// MaxPage is the largest page the API gives.
const MaxPage = 1000

// A PageOf reads one page of a list, and returns the token of the next one.
type PageOf[T any] func(size int32, token string) ([]T, string, error)

// UpToLimit reads the pages of a list up to --limit. If there are further items, the command says so at its end, on
// standard error whatever its format. newest says that the newest items come first.
func UpToLimit[T any](g *Given, newest bool, page PageOf[T]) ([]T, error) {
	further := false
	all, err := Pages(g.Int("limit"), func(size int32, token string) ([]T, string, error) {
		items, next, err := page(size, token)
		further = next != ""
		return items, next, err
	})
	if further && err == nil {
		g.omission = fmt.Sprintf("the %s %d; --limit 0 lists all", prompt.Either(newest, "newest", "first"), len(all))
	}
	return all, err
}

// Pages reads page after page until there are limit items, or, with limit 0, no more. A page may be empty
// and have a next one.
func Pages[T any](limit int, get PageOf[T]) ([]T, error) {
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
