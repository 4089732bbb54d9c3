// Package tracing makes OpenTelemetry spans and exports them with OTLP over gRPC.
//
//	feature ──Record──▶ queue ──▶ exporter goroutine ──Export──▶ collector
//	                      │
//	                      └─ full: the span is dropped and counted
//
// Record never blocks: a collector that hangs or is absent costs spans, not time. The exporter
// sends what has gathered, as soon as it has waited flushAfter for more, and gives up a batch that
// the collector has not taken within exportTime.
//
// A feature holds a *Tracer that is nil while traces are off, and checks that before it does
// anything else. So a broker without traces reads no header, makes no span and allocates nothing
// for them.
//
// The package speaks OTLP itself instead of using OpenTelemetry's SDK. The SDK has no public count
// of the spans that its queue drops, reads settings from OTEL_… variables, and keeps a span in
// memory from its start to its end. A claim can last for hours and outlive the process: its span is
// made when it ends, with an id that follows from the claim (Context.Derive) and times from the
// database.
package tracing
