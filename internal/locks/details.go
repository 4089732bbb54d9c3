package locks

import (
	"encoding/json"
	"strconv"

	"brokerd/internal/jsonline"
)

// details are what an event or a notice says besides its summary, in order. Numbers with a fraction are seconds.
type details []detail

type detail struct {
	key   string
	value any
}

// text writes them as a JSON object. Every lock makes two events, so their usual types go without reflection.
func (d details) text() (string, error) {
	b := make([]byte, 0, 256)
	for i, part := range d {
		if i == 0 {
			b = append(b, '{')
		} else {
			b = append(b, ',')
		}
		b = append(jsonline.Text(b, part.key), ':')
		switch v := part.value.(type) {
		case string:
			b = jsonline.Text(b, v)
		case int:
			b = strconv.AppendInt(b, int64(v), 10)
		case int64:
			b = strconv.AppendInt(b, v, 10)
		case float64:
			b = strconv.AppendFloat(b, v, 'f', -1, 64)
		case bool:
			b = strconv.AppendBool(b, v)
		case []string:
			b = jsonline.List(b, v, jsonline.Text)
		default:
			other, err := json.Marshal(v)
			if err != nil {
				return "", err
			}
			b = append(b, other...)
		}
	}
	return string(append(b, '}')), nil
}

// of adds whose request it is about, and what that is for.
func (d details) of(o Owner, c *claim) details {
	d = append(d, detail{"agent", o.Agent}, detail{"holder", o.Holder})
	if c.kind == Lock {
		d = append(d, detail{"count", len(c.paths)})
	}
	return d.on(c)
}

// on adds what a request is for.
func (d details) on(c *claim) details {
	if c.kind == Token {
		return append(d, detail{"token", c.token})
	}
	names := c.names()
	return append(d, detail{"paths", names[:min(len(names), namedPaths)]}, detail{"mode", c.mode.String()})
}
