package main

import (
	"testing"

	"brokerd/internal/testkit"
)

func TestTexts_NameOnlyCommandsThatExist(t *testing.T) {
	testkit.NamedCommandsExist(t, newRoot(&cli{}), `\b`, "problem.go", "../../internal", "../../client")
}
