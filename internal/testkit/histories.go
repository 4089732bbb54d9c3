package testkit

import (
	"flag"
	"strconv"
)

// Histories sets how many random histories the property test of a package tries, and about how many
// steps each has. The flags -rapid.checks and -rapid.steps decide otherwise. TestMain calls it before
// the flags are parsed, because tests that run at the same time share them.
func Histories(checks, steps int) {
	for name, value := range map[string]int{"rapid.checks": checks, "rapid.steps": steps} {
		if err := flag.Set(name, strconv.Itoa(value)); err != nil {
			panic(err) // the package does not use rapid
		}
	}
}
