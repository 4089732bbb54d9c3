package store

// A Round does in one function what functions of the writer have noted. Notes belong to the function that makes them:
// they are dropped with it.
//
// A Round belongs to the functions whose notes it gets. It runs before the next function that was not handed over by
// SubmitNotes, and before the end of the batch. If it fails, these functions fail. Only the writer uses it.
type Round[T any] struct {
	writer *writer
	run    func(tx *Tx, notes []T) error
	round  round
	notes  []T
	last   *Tx // that has noted
}

// NewRound returns a round that belongs to the functions that note. run gets all their notes, in order.
func NewRound[T any](s *Store, run func(tx *Tx, notes []T) error) *Round[T] {
	return newRound(s, run, false)
}

// An Ending is a Round that runs once at the end of the batch, after all functions. If it fails, only its own changes are
// undone, the failure is logged, and it runs again with the same notes a second later.
type Ending[T any] struct{ *Round[T] }

// NewEnding returns an ending. run gets the notes of all functions, in order; none after a Kick alone.
func NewEnding[T any](s *Store, run func(tx *Tx, notes []T) error) Ending[T] {
	return Ending[T]{newRound(s, run, true)}
}

func newRound[T any](s *Store, run func(tx *Tx, notes []T) error, ending bool) *Round[T] {
	r := &Round[T]{writer: s.writer, run: run}
	r.round = round{key: r, run: r.call, ending: ending}
	return r
}

// Note keeps a value for the round, and asks for the round in this batch. rows is about how many rows the round changes
// because of it: the function is charged for them, and they count towards the size of the batch.
func (r *Round[T]) Note(tx *Tx, value T, rows int) {
	if r.last != tx {
		r.last = tx
		n := len(r.notes)
		tx.onDrop(func() { r.cut(n) })
		tx.rounds = append(tx.rounds, r.round)
	}
	r.notes = append(r.notes, value)
	tx.noted += rows
}

// Owed reports whether notes wait for the round: those of this batch, or of a run that has failed. It is for functions of
// the writer.
func (r *Round[T]) Owed() bool { return len(r.notes) > 0 }

// Kick asks for an ending in this batch, and has the writer start a batch if there is none. If the batch is lost, the
// ending is tried again. It may be called concurrently.
func (e Ending[T]) Kick() {
	w := e.writer
	w.mu.Lock()
	if !w.closed {
		w.kick(e.round)
	}
	w.mu.Unlock()
	w.nudge()
}

// cut drops the notes from number n on.
func (r *Round[T]) cut(n int) {
	r.last = nil
	if n < len(r.notes) {
		clear(r.notes[n:])
		r.notes = r.notes[:n]
	}
}

// call runs the round with all notes. They come back if it fails or its batch is lost.
func (r *Round[T]) call(tx *Tx) error {
	notes := r.notes
	r.notes, r.last = nil, nil
	tx.onDrop(func() { r.notes, r.last = notes, nil })
	return r.run(tx, notes)
}

// A round is a Round as the batch sees it.
type round struct {
	key    any
	run    func(*Tx) error
	ending bool
}
