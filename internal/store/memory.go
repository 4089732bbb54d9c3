package store

import "iter"

// A Memory is a map that the functions of the writer share. A change of it belongs to the function that makes it, as a
// change of a row does: if the function is dropped, alone or with its batch, the key has its former value again. So
// values are replaced and never changed in place. The zero Memory is empty.
//
// Only the writer uses it: functions, and what they have run with OnCommit.
type Memory[K comparable, V any] struct{ values map[K]V }

// Get returns the value of a key, the zero value if there is none.
func (m *Memory[K, V]) Get(key K) V { return m.values[key] }

// Find returns the value of a key, and whether there is one.
func (m *Memory[K, V]) Find(key K) (V, bool) {
	v, found := m.values[key]
	return v, found
}

// Len returns the number of keys.
func (m *Memory[K, V]) Len() int { return len(m.values) }

// All returns the keys and their values, in no order.
func (m *Memory[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for k, v := range m.values {
			if !yield(k, v) {
				return
			}
		}
	}
}

// Set gives a key a value.
func (m *Memory[K, V]) Set(tx *Tx, key K, value V) {
	m.keep(tx, key)
	if m.values == nil {
		m.values = map[K]V{}
	}
	m.values[key] = value
}

// Delete removes a key, if it is there.
func (m *Memory[K, V]) Delete(tx *Tx, key K) {
	if _, found := m.values[key]; found {
		m.keep(tx, key)
		delete(m.values, key)
	}
}

// Forget removes a key for good, after the commit: it is for functions of OnCommit.
func (m *Memory[K, V]) Forget(key K) { delete(m.values, key) }

// keep has the key get its present value again if the function is dropped.
func (m *Memory[K, V]) keep(tx *Tx, key K) {
	before, found := m.values[key]
	tx.onDrop(func() {
		if found {
			m.values[key] = before
		} else {
			delete(m.values, key)
		}
	})
}

// A Value is one value that the functions of the writer share. As in a Memory, a change belongs to the function that
// makes it, and the value is replaced and never changed in place.
type Value[V any] struct{ value V }

// Get returns the value.
func (v *Value[V]) Get() V { return v.value }

// Set replaces the value.
func (v *Value[V]) Set(tx *Tx, value V) {
	before := v.value
	tx.onDrop(func() { v.value = before })
	v.value = value
}

// Put replaces the value for good, after the commit: it is for functions of OnCommit.
func (v *Value[V]) Put(value V) { v.value = value }

// cacheSize is how many entries a cache holds before it is emptied.
const cacheSize = 10_000

// A Cache keeps values that functions have read through their Tx, for later functions. Every change passes through the
// writer, so the cache agrees with the tables if each function that changes the rows behind it also calls Clear or
// Set. A function that changes a value in place must call Touch.
type Cache[K comparable, V any] struct{ memory Memory[K, V] }

// Get returns the value of the key, from load if it is not known. An error of load is returned, and
// nothing is kept.
func (c *Cache[K, V]) Get(tx *Tx, key K, load func() (V, error)) (V, error) {
	if v, ok := c.memory.Find(key); ok {
		return v, nil
	}
	v, err := load()
	if err != nil {
		return v, err
	}
	if c.memory.Len() >= cacheSize {
		c.Clear(tx)
	}
	c.memory.Set(tx, key, v) // what the function has changed before may be in it
	return v, nil
}

// Set replaces the value of the key: the rows behind it have changed so.
func (c *Cache[K, V]) Set(tx *Tx, key K, value V) { c.memory.Set(tx, key, value) }

// Touch has the value of the key loaded again if the function is dropped. A function that changes a value in place calls
// it first.
func (c *Cache[K, V]) Touch(tx *Tx, key K) {
	tx.onDrop(func() { delete(c.memory.values, key) })
}

// Clear empties the cache: the rows behind it have changed.
func (c *Cache[K, V]) Clear(*Tx) { clear(c.memory.values) }
