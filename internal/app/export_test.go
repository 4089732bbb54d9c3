package app

// OnArchived has fn called after a page of a kind of data was archived, and before it is removed.
func (c *Config) OnArchived(fn func(kind string)) { c.archived = fn }
