package artifacts

import (
	"strconv"
	"strings"

	"brokerd/internal/store"
)

// Find checks that a session has the artifact of a reference such as api.yaml or api.yaml@3. Errors:
// fault.NotFound.
func (r *Repository) Find(q store.Querier, session int64, text string) error {
	name, version := reference(text)
	_, err := find(q, session, name, version)
	return err
}

// reference splits a text such as api.yaml@3 into a name and a version, 0 if it has none.
func reference(text string) (name string, version int64) {
	i := strings.LastIndexByte(text, '@')
	if i < 0 {
		return text, 0
	}
	n, err := strconv.ParseUint(text[i+1:], 10, 63)
	if err != nil || n == 0 {
		return text, 0
	}
	return text[:i], int64(n)
}
