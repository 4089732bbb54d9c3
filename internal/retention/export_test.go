package retention

// SetSeam has fn called between an append to the archive and its transaction, and after each page of a deletion. What it returns
// ends the work there, as a crash would.
func SetSeam(k *Keeper, fn func() error) { k.seam = fn }
