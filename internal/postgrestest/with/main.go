// Command with runs a command while a PostgreSQL server runs, for tests that keep their data there: go run
// ./internal/postgrestest/with go test ./... Its exit code is that of the command. Without PostgreSQL it does not run the
// command, and says so; with CI=true that is an error.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"brokerd/internal/postgrestest"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "with:", err)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	if len(args) == 0 {
		return 2, errors.New("give a command to run")
	}
	server, err := postgrestest.Start("autovacuum=off") // of hundreds of databases that live for seconds
	if errors.Is(err, postgrestest.ErrMissing) && os.Getenv("CI") != "true" {
		fmt.Fprintln(os.Stdout, "make test-postgres: skipped:", err)
		return 0, nil
	}
	if err != nil {
		return 1, err
	}
	defer server.Stop()
	command := exec.Command(args[0], args[1:]...)
	command.Env = append(os.Environ(), postgrestest.Variable+"="+server.URL("postgres"))
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = command.Run()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return failed.ExitCode(), nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}
