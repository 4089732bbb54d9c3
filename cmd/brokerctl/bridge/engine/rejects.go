package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/google/uuid"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// Rejects moves what is no message to rejected/, and publishes an event about it.
type Rejects struct {
	folder *Folder
	broker *client.Client
	id     string // of the folder
	log    func(line string)
}

// rejectedDir has the files that cannot be read as the format, each beside a file NAME.error.
const rejectedDir = "rejected"

// errorExt ends the name of the file with the reason.
const errorExt = ".error"

// Move moves a file to rejected/ with a reason beside it and an event. place is what the reason
// calls the file. It can be repeated after a crash.
func (r *Rejects) Move(ctx context.Context, name, place, reason string) error {
	if err := r.folder.MkdirAll(rejectedDir, 0o755); err != nil {
		return err
	}
	text := complaint(place, reason)
	target, err := r.freeName(place, text, nil)
	if err != nil {
		return err
	}
	info, err := r.folder.Lstat(name)
	if err != nil {
		return err
	}
	if err := r.complain(ctx, target, text, info.ModTime().String()); err != nil {
		return err
	}
	return r.folder.Rename(name, target)
}

// Copy is Move for a part of a file, whose content it writes to rejected/ under a name. A repetition after a
// crash has the same content and place, and thus the same reason beside it.
func (r *Rejects) Copy(ctx context.Context, content []byte, name, place, reason string) error {
	if err := r.folder.MkdirAll(rejectedDir, 0o755); err != nil {
		return err
	}
	text := complaint(place, reason)
	target, err := r.freeName(name, text, content)
	if err != nil {
		return err
	}
	if err := r.complain(ctx, target, text, fmt.Sprintf("%x", sha256.Sum256(content))); err != nil {
		return err
	}
	if err := r.folder.WriteNew(target+".tmp", content); err != nil {
		return err
	}
	return r.folder.Rename(target+".tmp", target)
}

// complaint returns the text that says why a file is rejected.
func complaint(place, reason string) string {
	return place + ": " + strings.ReplaceAll(reason, "\n", "; ") // joined errors have several lines
}

// complain writes the reason beside a rejected file and publishes the event, once for each version
// of the file.
func (r *Rejects) complain(ctx context.Context, target, text, version string) error {
	r.log("rejects " + text)
	if err := r.folder.WriteNew(target+errorExt+".tmp", []byte(text+"\n")); err != nil {
		return err
	}
	if err := r.folder.Rename(target+errorExt+".tmp", target+errorExt); err != nil {
		return err
	}
	key := uuid.NewSHA1(uuid.NameSpaceURL, []byte(r.id+" "+target+" "+version))
	return r.Publish(ctx, key, "file_rejected", text)
}

// freeName returns a name in rejected/ for a file. Neither it nor the name of its reason is taken, unless a kill has
// interrupted the same rejection. The folders of the file become a part of the name.
func (r *Rejects) freeName(place, text string, content []byte) (string, error) {
	base := strings.ReplaceAll(place, "/", "-")
	if len(base) > 200 { // the limit of a name is 255 bytes
		sum := sha256.Sum256([]byte(base))
		base = fmt.Sprintf("%x-%s", sum[:8], base[len(base)-150:])
	}
	for n := 1; ; n++ {
		name := path.Join(rejectedDir, base)
		if n > 1 {
			name = fmt.Sprintf("%s.%d", name, n)
		}
		_, err := r.folder.Lstat(name + errorExt)
		if err == nil {
			if reason, err := r.folder.ReadFile(name + errorExt); err != nil || string(reason) != text+"\n" {
				continue
			}
		}
		_, err = r.folder.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
		if content == nil {
			continue
		}
		if earlier, err := r.folder.ReadFile(name); err == nil && bytes.Equal(earlier, content) {
			return name, nil
		}
	}
}

// Publish adds an event to the log, once for each key.
func (r *Rejects) Publish(ctx context.Context, key uuid.UUID, kind, summary string) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	_, err := r.broker.Events().PublishEvent(ctx, &pb.PublishEventRequest{RequestId: key.String(), Type: "bridge." + kind,
		Severity: pb.Severity_SEVERITY_WARNING, Summary: mailfile.OneLine(summary, 512)})
	if client.Reason(err) == "REQUEST_ID_REUSED" {
		return nil
	}
	if err = Refused(err); mailfile.Rejected(err) {
		r.log(fmt.Sprintf("publish bridge.%s: %v", kind, err))
		return nil
	}
	return err
}
