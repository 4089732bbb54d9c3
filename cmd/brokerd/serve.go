package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"brokerd/internal/app"
)

func newServe() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon in the foreground (the default)",
		Long: `serve runs the daemon until SIGINT or SIGTERM. On SIGHUP it reads the files for
TLS again, and the log level from the environment and the configuration file,
and changes nothing else; a level that was given by flag stays.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// complete sets flags too, so these are read before.
			levelByFlag := cmd.Flags().Changed("log-level")
			sqliteFlag := firstOf(cmd.Flags(), "sync", "checkpoint")
			tlsFlag := firstOf(cmd.Flags(), "tls-cert", "tls-key", "tls-client-ca")
			if err := s.complete(cmd.Flags()); err != nil {
				return usageError{err}
			}
			if err := s.checkTLS(tlsFlag); err != nil {
				return usageError{err}
			}
			if s.Store != "" && sqliteFlag != "" {
				return usageError{fmt.Errorf("--%s has no effect with --store: leave it out", sqliteFlag)}
			}
			level, err := parseLevel(s.LogLevel)
			if err != nil {
				return usageError{err}
			}
			s.LogFormat = logFormat(s.LogFormat, cmd.ErrOrStderr())
			log, err := newLogger(level, s.LogFormat, cmd.ErrOrStderr())
			if err != nil {
				return usageError{err}
			}
			// The daemon survives the process that reads its log.
			signal.Ignore(syscall.SIGPIPE)
			var running atomic.Pointer[app.Daemon]
			defer onHangup(func() {
				if d := running.Load(); d != nil {
					(*d).ReloadCertificates()
				}
				s.reload(level, levelByFlag, log)
			})()
			err = s.serve(cmd, log, &running)
			if app.Misconfigured(err) {
				err = usageError{err}
			}
			return s.logFailure(err, log)
		},
	}
	s.addFlags(cmd.Flags())
	return cmd
}

// logFailure writes a failure of the daemon to a log of JSON, so that each line is JSON. In all other
// cases, and for mistakes in the settings, main prints the error.
func (s *settings) logFailure(err error, log *zap.Logger) error {
	var usage usageError
	if err == nil || s.LogFormat == "console" || errors.As(err, &usage) {
		return err
	}
	log.Error("brokerd has failed", zap.String("error", explain(err)))
	return &exitCode{code: exitError}
}

// errInputEnded is the reason of a stop by --stop-on-stdin-eof.
var errInputEnded = errors.New("standard input has ended")

// serve runs the daemon until the command's context ends, or standard input if that is asked for. It
// sets running while the daemon answers calls.
func (s *settings) serve(cmd *cobra.Command, log *zap.Logger, running *atomic.Pointer[app.Daemon]) (err error) {
	if s.Temporary {
		if err := s.claimFolder(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(s.Data)) }()
	}
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	if s.StopOnEOF {
		go func() { // ends with the process: a read of standard input cannot be cancelled
			_, _ = io.Copy(io.Discard, cmd.InOrStdin()) // an error ends the input as well
			stop(errInputEnded)
		}()
	}
	c := s.config()
	c.Log = log
	return app.Run(ctx, c, func(a app.Daemon) {
		running.Store(&a)
		if s.LogFormat != "console" {
			log.Info("started", zap.String("version", c.Version), zap.Int("pid", os.Getpid()),
				zap.Strings("listen", a.Addresses()), zap.String("data", a.Dir()), zap.String("sync", a.Sync()))
			return
		}
		fmt.Fprintf(cmd.OutOrStdout(), "brokerd %s listening on %s, data %s, sync %s; stop with Ctrl-C\n",
			c.Version, strings.Join(a.Addresses(), " "), a.Dir(), a.Sync())
	})
}

// claimFolder makes sure that removing the data folder at the end removes only what this daemon has
// written.
func (s *settings) claimFolder() (err error) {
	if s.Data == "" {
		s.Data, err = os.MkdirTemp("", "brokerd-")
		return err
	}
	entries, err := os.ReadDir(s.Data)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return usageError{fmt.Errorf("temporary: the data folder %s is not empty, and would be removed at the end", s.Data)}
	}
	return nil
}

// onHangup calls reload on each SIGHUP, until the function that it returns is called.
func onHangup(reload func()) (stop func()) {
	hangups, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		for {
			select {
			case <-hangups:
				reload()
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(done)
	}
}

// reload reads the log level again. Its report is written if the level before or after permits
// information.
func (s *settings) reload(level zap.AtomicLevel, byFlag bool, log *zap.Logger) {
	if byFlag {
		log.Warn("SIGHUP: the log level stays, because the flag --log-level gives it")
		return
	}
	text, err := s.logLevel()
	next := zap.NewAtomicLevel()
	if err == nil {
		next, err = parseLevel(text)
	}
	if err != nil {
		log.Error("SIGHUP: the log level stays, because the settings are faulty", zap.Error(err))
		return
	}
	level.SetLevel(min(level.Level(), next.Level()))
	log.Info("SIGHUP: the log level was read again", zap.Stringer("log_level", next))
	level.SetLevel(next.Level())
}
