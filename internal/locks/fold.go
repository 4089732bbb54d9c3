package locks

import (
	"slices"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// CaseChanged refuses to compare the paths of a session in another way while some are locked or waited for: they are kept in the form in which they are
// compared. It is a hook of the change of that setting. fault.Precondition (PATHS_LOCKED).
func (t *Table) CaseChanged(tx *store.Tx, session int64) error {
	u, err := t.lockTx(tx, session)
	if err != nil {
		return err
	}
	held, err := readGrants(tx.Query(selectLocks, session, 0, 1))
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
