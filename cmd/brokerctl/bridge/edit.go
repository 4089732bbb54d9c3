package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"strings"
	"time"
)

// editing has the temporary files of changes, each with the path of its file below it.
var editing = path.Join(private, "edit")

// edit changes a file with a temporary file and a rename. If another program replaces the file at the
// same time, edit restores the text of that program at once and applies the change to it, so that its
// text is not lost. The time of the last change stays that of the other program. A file that does not
// exist, that is not a regular file, or that change cannot read stays as it is.
func (b *bridge) edit(name string, change func([]byte) ([]byte, error)) error {
	temp := path.Join(editing, name)
	for {
		before, _ := b.version(name)
		text, err := b.read(name)
		if rejected(err) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		changed, err := change(text)
		if err != nil || bytes.Equal(changed, text) {
			return nil
		}
		if err := b.root.MkdirAll(path.Dir(temp), 0o755); err != nil {
			return err
		}
		if err := writeNew(b.root, temp, changed); err != nil {
			return err
		}
		if err := b.root.Chtimes(temp, time.Time{}, before.modified); err != nil {
			return err
		}
		replaced, err := b.exchange(temp, name)
		conflict := err == nil && !bytes.Equal(replaced, text)
		for put := changed; err == nil && conflict && !bytes.Equal(put, replaced); {
			var back []byte
			if back, err = b.exchange(temp, name); bytes.Equal(back, put) {
				break
			}
			put, replaced = replaced, back // the program has replaced the file again
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // the other program has removed the file
		}
		if gone := b.root.Remove(temp); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		if err != nil || !conflict {
			return err
		}
	}
}

// exchangeByName is exchange where the system cannot exchange two files.
func (b *bridge) exchangeByName(temp, name string) ([]byte, error) {
	replaced, err := b.read(name)
	if err != nil {
		return nil, err
	}
	return replaced, b.root.Rename(temp, name)
}

// resumeEdits finishes the changes that a kill has interrupted. A temporary file has either the new
// text or the text that another program wrote at the same time. It adds the fields that the file
// lacks, and its status if that is a later one.
func (b *bridge) resumeEdits() error {
	var failed error
	err := b.walk(editing, func(temp string, info fs.FileInfo) {
		if !info.Mode().IsRegular() {
			return
		}
		if text, err := b.read(temp); err == nil {
			name := strings.TrimPrefix(temp, editing+"/")
			failed = errors.Join(failed, b.edit(name, func(data []byte) ([]byte, error) { return merge(data, text) }))
		}
		if gone := b.root.Remove(temp); !errors.Is(gone, fs.ErrNotExist) {
			failed = errors.Join(failed, gone)
		}
	})
	return errors.Join(err, failed)
}

// merge adds to an object the fields of another one that it lacks, and the later status.
func merge(data, other []byte) ([]byte, error) {
	into, err := parse(data)
	if err != nil {
		return nil, err
	}
	from, err := parse(other)
	if err != nil {
		return nil, err
	}
	for name, value := range from {
		later := name == "status" && statusRank(textOf(value)) > statusRank(textOf(into[name]))
		if into[name] != nil && !later {
			continue
		}
		if data, err = withField(data, name, value); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// textOf returns the text of a JSON string; "" for other values.
func textOf(value json.RawMessage) string {
	text, _ := jsonString(value)
	return text
}
