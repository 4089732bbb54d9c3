// Command faultd is brokerd with a faulty disk and a clock that jumps, for tests. It takes the
// command line of `brokerd serve` as far as tests need it, and the address of a Unix socket on which
// a test sends it commands: see Command. It runs the same internal/app as brokerd does.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"brokerd/internal/app"
	"brokerd/internal/crashtest/faultvfs"
)

// A Command is one line of JSON that a test sends. The answer is a line too: an Answer.
type Command struct {
	Plan *faultvfs.Plan // the faults from now on
	Jump time.Duration  // what to add to the wall clock, in whole seconds
}

// An Answer has what happened since the newest plan.
type Answer struct {
	faultvfs.Counts
	Error string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "faultd:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var c app.Config
	flags := pflag.NewFlagSet("faultd", pflag.ContinueOnError)
	flags.StringVar(&c.Dir, "data", "", "the data folder")
	flags.StringVar(&c.Sync, "sync", "full", "full or normal")
	control := flags.String("control", "", "path of the Unix socket for commands")
	plan := flags.String("plan", "{}", "the first plan, as JSON")
	level := flags.String("log-level", "warn", "debug, info, warn or error")
	flags.String("log-format", "console", "console")
	if err := flags.Parse(args); err != nil {
		return err
	}
	first := faultvfs.Plan{}
	if err := json.Unmarshal([]byte(*plan), &first); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	threshold, err := zapcore.ParseLevel(*level)
	if err != nil {
		return err
	}
	if err := faultvfs.Register(); err != nil {
		return err
	}
	if err := faultvfs.Set(first); err != nil {
		return err
	}
	encoder := zapcore.NewConsoleEncoder(zap.NewProductionEncoderConfig())
	c.Log = zap.New(zapcore.NewCore(encoder, zapcore.AddSync(stderr), threshold))
	clock := newJumpingClock()
	c.Clock = clock
	c.Version = "faultd"
	// The disk of the machine that runs the test must not decide what is refused.
	c.DiskUsed = func(string) (float64, error) { return 0, nil }

	listener, err := net.Listen("unix", *control)
	if err != nil {
		return err
	}
	go obey(listener, clock) // ends with the process
	return app.Run(ctx, c, func(a app.Daemon) {
		fmt.Fprintf(stdout, "faultd listening on %v\n", a.Addresses())
	})
}

// obey carries out the commands of one connection after the other.
func obey(listener net.Listener, clock *jumpingClock) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		in, out := json.NewDecoder(conn), json.NewEncoder(conn)
		for {
			var command Command
			if err := in.Decode(&command); err != nil {
				break
			}
			answer := Answer{}
			if command.Plan != nil {
				err = errors.Join(err, faultvfs.Set(*command.Plan))
			}
			if command.Jump != 0 {
				clock.jump(command.Jump)
			}
			if answer.Counts = faultvfs.Read(); err != nil {
				answer.Error = err.Error()
			}
			if err := out.Encode(answer); err != nil {
				break
			}
		}
		_ = conn.Close() // the test has closed it
	}
}
