package fault

import "strconv"

// Limits of the lists in a request. A decoder checks them before it builds the items.
const (
	MaxItems    = 1000    // in one list of the request itself
	MaxAllItems = 100_000 // in all its lists and maps together; of JSON, tokens count too
)

// LongList returns the error for a list of the request itself with more than MaxItems items.
func LongList(field string) *Error {
	return Field(field, "has more than %d items: send fewer at a time", MaxItems)
}

// TooManyItems returns the error for a request with more than MaxAllItems items. what names them.
func TooManyItems(what string) *Error {
	return New(Exhausted, "TOO_MANY_ITEMS", "the request has more than %d %s: send less at a time", MaxAllItems, what).
		With("limit", "items").With("items", strconv.Itoa(MaxAllItems))
}
