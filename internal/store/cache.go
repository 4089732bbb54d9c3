package store

// cacheSize is how many entries a cache holds before it is emptied.
const cacheSize = 10_000

// A Cache keeps values that functions have read through their Tx, for later functions. Every change
// passes through the writer, so the cache agrees with the tables if each function that changes the
// rows behind it also calls Clear. A value that a function has loaded is dropped if the function is
// rolled back. A function that changes a value in place must drop it with DropOnUndo.
//
// Only the writer uses it: the methods take the Tx to prove it.
type Cache[K comparable, V any] struct {
	entries map[K]V
}

// NewCache returns an empty cache.
func NewCache[K comparable, V any]() *Cache[K, V] { return &Cache[K, V]{entries: map[K]V{}} }

// Get returns the value of the key, from load if it is not known. An error of load is returned, and
// nothing is kept.
func (c *Cache[K, V]) Get(tx *Tx, key K, load func() (V, error)) (V, error) {
	if v, ok := c.entries[key]; ok {
		return v, nil
	}
	v, err := load()
	if err != nil {
		return v, err
	}
	if len(c.entries) >= cacheSize {
		clear(c.entries)
	}
	c.entries[key] = v
	c.DropOnUndo(tx, key)
	return v, nil
}

// DropOnUndo drops the value of the key if the function is rolled back. A function that changes a
// value in place calls it first.
func (c *Cache[K, V]) DropOnUndo(tx *Tx, key K) { tx.OnUndo(func() { delete(c.entries, key) }) }

// Clear empties the cache: the rows behind it have changed.
func (c *Cache[K, V]) Clear(*Tx) { clear(c.entries) }
