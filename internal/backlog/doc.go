// Package backlog does what is left of changes of messages that are too large for one function of the writer.
//
// The first page of such a change is part of the function that causes it. The backlog does the rest in pages, one page
// per function, between those of other callers. A row says that a change is not finished, so that the backlog resumes
// it after a restart. The changes are:
//
//   - the ranks of all that is unfinished in a session whose ageing has changed (ranks.go; a row of reranks);
//   - the end of all that is unfinished in a session that is closed (close.go; a row of work_backlog, as those below);
//   - the withdrawal of messages that have become moot (withdraw.go);
//   - the copies of a message that reports a change, for which the package router has the page (OnPage).
package backlog
