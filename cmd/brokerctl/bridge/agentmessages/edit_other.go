//go:build !linux

package agentmessages

import "brokerd/cmd/brokerctl/bridge/engine"

// exchange replaces a file by a temporary file and returns the text that it replaces.
func exchange(f *engine.Folder, temp, name string) ([]byte, error) {
	return exchangeByName(f, temp, name)
}
