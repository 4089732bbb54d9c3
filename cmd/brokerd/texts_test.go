package main

import (
	"testing"

	"brokerd/internal/testkit"
)

func TestTexts_NameOnlyCommandsThatExist(t *testing.T) {
	t.Parallel()
	testkit.NamedCommandsExist(t, newRoot(), "['`]", "../../internal", "../../client", "../brokerctl")
}
