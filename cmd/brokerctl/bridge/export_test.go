package bridge

import "os"

// Edit changes a file in a folder as the bridge does.
func Edit(root *os.Root, name string, change func([]byte) ([]byte, error)) error {
	if err := root.MkdirAll(editing, 0o755); err != nil {
		return err
	}
	return (&bridge{root: root}).edit(name, change)
}

// ResumeEdits finishes the changes in a folder that a kill has interrupted.
func ResumeEdits(root *os.Root) error { return (&bridge{root: root}).resumeEdits() }

// WithField returns a JSON object with a new value of a field.
func WithField(object, name, value string) (string, error) {
	text, err := withField([]byte(object), name, []byte(value))
	return string(text), err
}

// Take takes a file as an outbox does before it sends it.
func Take(root *os.Root, name, owner string) error {
	_, err := (&bridge{root: root}).take(name, owner)
	return err
}
