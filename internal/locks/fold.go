package locks

import (
	"slices"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// SessionConfigured refuses to compare the paths of a session in another way while some are locked or
// requested: they are stored in the form in which they are compared. It is a hook of the configuration.
// Errors: fault.Precondition (PATHS_LOCKED).
func (t *Table) SessionConfigured(tx *store.Tx, before, now directory.Session) error {
	if before.Settings.GetFoldCase() == now.Settings.GetFoldCase() {
		return nil
	}
	u, err := t.lockTx(tx, now.ID)
	if err != nil {
		return err
	}
	held, err := readGrants(tx.Query(selectLocks, now.ID, 0, 1))
	if err != nil {
		return err
	}
	waits := slices.ContainsFunc(u.queue.tickets, func(k *ticket) bool { return k.claim.kind == Lock })
	if len(held) == 0 && !waits {
		return nil
	}
	return fault.New(fault.Precondition, "PATHS_LOCKED",
		"fold_case can change only while no lock is held or requested: wait until the agents release all locks, or revoke them")
}
