package main

import (
	"testing"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/testkit"
)

func TestTexts_NameOnlyCommandsThatExist(t *testing.T) {
	testkit.NamedCommandsExist(t, newRoot(command.New(setting.Environment{})), `\b`, "internal/command/problem.go", "../../internal", "../../client")
}
