package main

import (
	"fmt"
	"io"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
)

// parseLevel returns the lowest level that a logger writes. The level can change while the logger
// is in use.
func parseLevel(level string) (zap.AtomicLevel, error) {
	least, err := zap.ParseAtomicLevel(level)
	if err != nil {
		return least, fmt.Errorf("log-level: must be debug, info, warn or error, not %q", level)
	}
	return least, nil
}

// logFormat returns the format that auto means for a log to w, and any other format as it is.
func logFormat(format string, w io.Writer) string {
	switch {
	case format != "auto":
		return format
	case terminal(w):
		return "console"
	}
	return "json"
}

// newLogger returns a logger that writes to w: lines for people (console) or JSON.
func newLogger(least zapcore.LevelEnabler, format string, w io.Writer) (*zap.Logger, error) {
	var encoder zapcore.Encoder
	switch format {
	case "json":
		c := zap.NewProductionEncoderConfig()
		c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
		c.EncodeDuration = zapcore.StringDurationEncoder
		encoder = zapcore.NewJSONEncoder(c)
	case "console":
		c := zap.NewDevelopmentEncoderConfig()
		c.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		encoder = zapcore.NewConsoleEncoder(c)
	default:
		return nil, fmt.Errorf("log-format: must be console, json or auto, not %q", format)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), least)), nil
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
