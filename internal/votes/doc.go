// Package votes keeps votes: questions with options that an electorate decides.
//
//	 open
//	   │      cast, change, elector leaves
//	   ▼      ┌──────┐
//	 OPEN ────┴──────┘
//	   │  deadline │ every remaining elector has voted │ opener or operator │ end of the session
//	   ▼
//	CLOSED with an outcome
//
// # What it guarantees
//
// The electorate is fixed when the vote opens. Each elector has one ballot, which it may change until
// the vote closes. A vote closes once; the tally of its outcome has exactly the ballots that were
// committed before that. An elector that deregisters leaves the electorate, and its ballot counts if it
// has cast one. The opening and the letters to the electorate are one transaction. The closing comes
// with its first notices; the backlog sends those of a large electorate page by page, each exactly once.
//
// # Counting
//
// Count defines how the quorum, the rule and ties decide. A vote is an item of work.Table and has the numbers
// of electors and ballots, and of ballots per option, which every change keeps; the ballot of each elector is
// a part. Checks compares them.
package votes
