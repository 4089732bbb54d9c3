// Package output prints what a command has found out: for people as tables and labels, for programs as JSON, and for
// language models as short text in which the words of others are in frames.
//
// The three forms have one source, a message of the API. Show prints one, List many, and Follow one after the other as
// they come.
package output
