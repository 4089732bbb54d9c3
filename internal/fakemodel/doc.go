// Package fakemodel is a model for tests of coding agents: a server on loopback that speaks the streaming APIs of the
// providers, answers by a script, and keeps every request. A test learns from it what a real model would have read.
//
//	coding agent ──request──► Server ──► parse: the conversation as parts
//	     ▲                                  │
//	     └───────────answer──── next: the script in the newest order
//
// The script is in the user's prompt, so the server has no state for a conversation, and answers several at once. A
// line "RUN: COMMAND" has the model call the shell tool of the coding agent, one line after the other; " ;;" ends a
// command within a line. When all of them have a result, the model ends its turn with a text: with "WAIT: NAME" in the
// prompt, once for each name, as soon as the test calls GoOn.
//
// The APIs: Anthropic Messages, OpenAI Responses, OpenAI Chat Completions, Gemini generateContent. The package knows as
// much of them as Claude Code, Codex, opencode and Gemini CLI need. It is used by tests only.
package fakemodel
