package agentmessages

import (
	"bytes"
	"errors"
	"io/fs"
	"path"
	"strings"
	"time"

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
)

// editing has the temporary files of changes, each with the path of its file below it.
var editing = path.Join(engine.Private, "edit")

// edit changes a file with a temporary file and a rename. If another program replaces the file at the
// same time, edit restores the text of that program at once and applies the change to it, so that its
// text is not lost. The time of the last change stays that of the other program. A file that does not
// exist, that is not a regular file, or that change cannot read stays as it is.
func edit(f *engine.Folder, name string, change func([]byte) ([]byte, error)) error {
	temp := path.Join(editing, name)
	for {
		before, _ := versionOf(f, name)
		text, err := f.Read(name)
		if mailfile.Rejected(err) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		changed, err := change(text)
		if err != nil || bytes.Equal(changed, text) {
			return nil
		}
		if err := f.MkdirAll(path.Dir(temp), 0o755); err != nil {
			return err
		}
		if err := f.WriteNew(temp, changed); err != nil {
			return err
		}
		if err := f.Chtimes(temp, time.Time{}, before.modified); err != nil {
			return err
		}
		replaced, err := exchange(f, temp, name)
		conflict := err == nil && !bytes.Equal(replaced, text)
		for put := changed; err == nil && conflict && !bytes.Equal(put, replaced); {
			var back []byte
			if back, err = exchange(f, temp, name); bytes.Equal(back, put) {
				break
			}
			put, replaced = replaced, back // the program has replaced the file again
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // the other program has removed the file
		}
		if gone := f.Remove(temp); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		if err != nil || !conflict {
			return err
		}
	}
}

// exchangeByName is exchange where the system cannot exchange two files.
func exchangeByName(f *engine.Folder, temp, name string) ([]byte, error) {
	replaced, err := f.Read(name)
	if err != nil {
		return nil, err
	}
	return replaced, f.Rename(temp, name)
}

// resumeEdits finishes the changes that a kill has interrupted. A temporary file has either the new
// text or the text that another program wrote at the same time. It adds the fields that the file
// lacks, and its status if that is a later one.
func resumeEdits(f *engine.Folder) error {
	var failed error
	err := f.Walk(editing, func(temp string, info fs.FileInfo) {
		if !info.Mode().IsRegular() {
			return
		}
		if text, err := f.Read(temp); err == nil {
			name := strings.TrimPrefix(temp, editing+"/")
			failed = errors.Join(failed, edit(f, name, func(data []byte) ([]byte, error) { return merge(data, text) }))
		}
		if gone := f.Remove(temp); !errors.Is(gone, fs.ErrNotExist) {
			failed = errors.Join(failed, gone)
		}
	})
	return errors.Join(err, failed)
}

// merge adds to an object the fields of another one that it lacks, and the later status.
func merge(data, other []byte) ([]byte, error) {
	into, err := mailfile.Parse(data)
	if err != nil {
		return nil, err
	}
	from, err := mailfile.Parse(other)
	if err != nil {
		return nil, err
	}
	for name, value := range from {
		later := name == "status" && statusRank(mailfile.TextOf(value)) > statusRank(mailfile.TextOf(into[name]))
		if into[name] != nil && !later {
			continue
		}
		if data, err = withField(data, name, value); err != nil {
			return nil, err
		}
	}
	return data, nil
}
