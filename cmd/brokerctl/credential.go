package main

import "github.com/spf13/cobra"

const credentialLong = `Proofs of identity for clients over TCP.`

func newCredentialCommand(c *cli) *cobra.Command {
	return group("credential", "Identify clients", credentialLong, "  brokerctl credential tls tls builder-1", newCredentialTLSCommand(c))
}
