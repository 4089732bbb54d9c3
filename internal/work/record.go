package work

import "strconv"

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
