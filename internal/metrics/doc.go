// Package metrics serves what the broker measures to Prometheus.
//
//	store, rpc, broker ──Committed, Called, Acked …──► histograms and counters ─┐
//	                                                                            ├──► GET /metrics
//	database, store's figures ◄──read when it is asked for, at most once a second─┘
//
// The parts know nothing of Prometheus: they have small observers, which app plugs in if metrics are asked for. Without
// them nothing is counted, and nothing costs anything. docs/observe.md says what each metric means.
package metrics
