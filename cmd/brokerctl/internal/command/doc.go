// Package command is the frame in which the commands of brokerctl run: the connection to the broker, the errors, and what
// cobra lacks, such as flags that know days, help pages of 80 columns, completion from the broker, and the search for what
// a mistyped command may have meant.
//
// A Caller is one run of brokerctl. Every command gets it, and nothing else is shared between commands.
package command
