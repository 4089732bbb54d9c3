// Package admin answers the operator's questions about the broker as a whole: how it stands, and
// whether its database is sound. It keeps no tables of its own; what it tells of the features it
// asks them through the interfaces here.
package admin
