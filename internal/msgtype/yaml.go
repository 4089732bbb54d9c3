package msgtype

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// jsonOf returns a YAML node as JSON text, with the keys in the order of the file. It returns an
// empty text for a missing node.
func jsonOf(node *yaml.Node) (string, error) {
	if node.IsZero() {
		return "", nil
	}
	var b strings.Builder
	err := writeJSON(&b, node)
	return b.String(), err
}

func writeJSON(b *strings.Builder, node *yaml.Node) error {
	switch node.Kind {
	case yaml.MappingNode:
		return writeList(b, '{', '}', node.Content, func(i int) string {
			if i%2 == 1 {
				return ": "
			}
			return ", "
		})
	case yaml.SequenceNode:
		return writeList(b, '[', ']', node.Content, func(int) string { return ", " })
	case yaml.AliasNode:
		return writeJSON(b, node.Alias)
	case yaml.ScalarNode:
		var value any
		if err := node.Decode(&value); err != nil {
			return err
		}
		text, err := json.Marshal(value)
		b.Write(text)
		return err
	default:
		return fmt.Errorf("line %d: no JSON stands for this", node.Line)
	}
}

func writeList(b *strings.Builder, open, end byte, items []*yaml.Node, separator func(i int) string) error {
	b.WriteByte(open)
	for i, item := range items {
		if i > 0 {
			b.WriteString(separator(i))
		}
		if err := writeJSON(b, item); err != nil {
			return err
		}
	}
	b.WriteByte(end)
	return nil
}
