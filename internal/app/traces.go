package app

import (
	"context"
	"fmt"

	"brokerd/internal/fault"
	"brokerd/internal/tracing"
)

// checkTraces refuses settings of traces before the daemon makes or opens the data folder.
func (c *Config) checkTraces() error {
	if !(c.TraceSample >= 0 && c.TraceSample <= 1) { // also if it is no number
		return fault.New(fault.Invalid, "BAD_SHARE", "trace-sample is %g; it must be 0 to 1", c.TraceSample)
	}
	if c.Traces == "" {
		return nil
	}
	if err := tracing.CheckEndpoint(c.Traces); err != nil {
		return fmt.Errorf("export traces: %w", err)
	}
	return nil
}

// startTracer returns nil if traces are not exported: then nothing is traced.
func (a *App) startTracer() (*tracing.Tracer, error) {
	c := a.config
	if c.Traces == "" {
		return nil, nil
	}
	t, err := tracing.New(tracing.Options{
		Endpoint: c.Traces, Sample: c.TraceSample, Version: c.Version, Clock: c.Clock, Log: c.Log.Named("traces"),
	})
	if err != nil {
		return nil, err
	}
	a.onStop(func(context.Context) error { return t.Stop() })
	return t, nil
}
