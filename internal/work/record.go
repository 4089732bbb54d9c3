package work

import (
	"strconv"

	"brokerd/internal/store"
)

// RecordBytes is about how many bytes of lines one call of a feature's Records or Finished returns.
const RecordBytes = 1 << 20

// Position returns the key after which Records of a feature continues: the one that its last call
// returned as text, or 0.
func Position(after string) (int64, error) {
	if after == "" {
		return 0, nil
	}
	return strconv.ParseInt(after, 10, 64)
}

// Lines returns rows as lines of JSON, about RecordBytes of them, and the key of the last one as text.
// It closes the rows.
func Lines[T any](
	rows *store.Rows, scan func(*store.Rows) (T, error), line func(*T) ([]byte, error), key func(*T) int64,
) (lines [][]byte, last string, err error) {
	defer rows.Close()
	for bytes := 0; bytes < RecordBytes && rows.Next(); {
		row, err := scan(rows)
		if err != nil {
			return nil, "", err
		}
		text, err := line(&row)
		if err != nil {
			return nil, "", err
		}
		lines, last = append(lines, text), strconv.FormatInt(key(&row), 10)
		bytes += len(text)
	}
	return lines, last, rows.Close()
}
