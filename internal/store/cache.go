package store

// cacheSize is how many entries a cache holds before it begins anew.
const cacheSize = 10_000

// A Cache keeps what functions have read through their Tx, for the functions after them. Since every change passes
// through the writer it agrees with what a Tx would read, provided that whoever changes the rows
// behind it calls Clear in the same function. It is emptied whenever something is rolled back.
//
// Only the writer uses it: Get and Clear take the Tx to prove it.
type Cache[K comparable, V any] struct {
	entries map[K]V
}

// NewCache returns an empty cache on what is read from the store.
func NewCache[K comparable, V any](s *Store) *Cache[K, V] {
	c := &Cache[K, V]{entries: map[K]V{}}
	s.writer.remember(c)
	return c
}

// Get returns the value of the key, from load if it is not known. What load refuses is not kept.
func (c *Cache[K, V]) Get(_ *Tx, key K, load func() (V, error)) (V, error) {
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
	return v, nil
}

// Clear empties the cache: the rows behind it have changed.
func (c *Cache[K, V]) Clear(*Tx) { clear(c.entries) }

func (c *Cache[K, V]) forget() { clear(c.entries) }

// remember has the writer empty a cache whenever it rolls something back.
func (w *writer) remember(c interface{ forget() }) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.caches = append(w.caches, c)
}

// forget empties all caches: they may hold what was read and then rolled back.
func (w *writer) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.caches {
		c.forget()
	}
}
