package retention

// FailBetween lets what comes between an append to the archive and its transaction, or after a page of a deletion, fail.
func FailBetween(k *Keeper, err error) { k.seam = func() error { return err } }
