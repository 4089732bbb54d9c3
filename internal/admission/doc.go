// Package admission decides who may send how much, and which agents are given work.
//
// # Sends
//
//	Admit     returns when a caller may send: at its session's rate (sendrate.go), if the disk has space
//	Judge     refuses a message that is too large, or whose type or payload the session does not allow
//	Report    appends an event about messages that were sent in spite of doubts about type or payload (doubts.go)
//	Warnings  returns what the sender should know: the message has no text, or no agent gets it yet (warnings.go)
//
// Admit runs before the function of the writer, and may wait. The others run in the function that sends.
//
// # Directives
//
// A directive is an order to agents, for example halt, resume or nudge. MayDirect refuses it from those who may not
// direct the session. Direct applies it in the transaction that sends it (directives.go). All directives are delivered
// before other messages, and by no other rule are they different mail.
//
// # Gates
//
// Between an agent and its work there may be a gate: a halt of the agent, a drain of the broker, or the agent's open
// circuit breaker. Then the core gives the agent only directives, or one probe beside them:
//
//	halt                    until a resume, or until the agent deregisters
//	drain                   until it ends; for all agents
//	open circuit breaker    until a probe is acknowledged, or the agent registers again (breaker.go)
//
// Halts and breakers are rows. Gates keeps in memory what the functions of the writer have read, because the core asks
// for the pass of an agent for each delivery. Whatever changes a row clears this memory. Whatever makes a gate wider
// calls Reconsider of the core, so the core examines again what the agent may take.
//
// # What it relies on
//
// The router knows this package by its interfaces Admission, Directives and Advisor, and the core (package broker) by
// Gates and Breakers. The core itself takes back the claims of an agent that fails, and reports to Breakers how claims
// end. The directory of sessions and agents has the settings. The package drain says whether the broker is drained,
// and the package diskguard whether the disk has space.
package admission
