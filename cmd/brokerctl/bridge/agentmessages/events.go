package agentmessages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"
	"unicode/utf8"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
)

// publish publishes the files of events/, at most a batch. It reports whether there are more. Of a sender whose event
// cannot be published now, the later ones wait.
func (p *sends) publish(ctx context.Context) (more bool, err error) {
	dirs, failed := p.f.eventFolders()
	published, failing := 0, map[string]bool{}
	for _, dir := range dirs {
		names, err := p.f.jsonFiles(dir)
		failed = errors.Join(failed, err)
		for _, name := range names {
			if p.leaving.has(path.Join(dir, name)) {
				continue
			}
			if published == engine.Batch {
				return true, failed
			}
			done, err := p.publishFile(ctx, dir, name, failing)
			failed = errors.Join(failed, err)
			if done {
				published++
			}
		}
	}
	return false, failed
}

// publishFile publishes a file, unless its sender is failing. It reports whether the file is done with, and adds its
// sender to failing if not.
func (p *sends) publishFile(ctx context.Context, dir, name string, failing map[string]bool) (bool, error) {
	full := path.Join(dir, name)
	data, err := p.f.b.Folder.Read(full)
	if err == nil && !utf8.ValidString(full) {
		err = errName
	}
	var file *messageFile
	if err == nil {
		file, err = parseFile(data, time.Now())
	}
	if err == nil {
		if failing[file.from] {
			return false, nil
		}
		err = p.publishEvent(ctx, dir, file)
	}
	switch {
	case errors.Is(err, mailfile.ErrIncomplete) && p.f.b.Folder.Unsettled(full), errors.Is(err, fs.ErrNotExist):
		return false, nil
	case mailfile.Rejected(err):
		err = p.leaving.reject(ctx, p.f, full, err)
		return err == nil, err
	case err != nil:
		if file != nil {
			failing[file.from] = true
		}
		return false, fmt.Errorf("publish %s: %w", full, err)
	}
	err = p.leaving.archive(p.f, full)
	return err == nil, err
}

// publishEvent publishes an event. The broker remembers its request id for an hour.
func (p *sends) publishEvent(ctx context.Context, dir string, file *messageFile) error {
	if file.event == nil {
		return mailfile.Refusal("it is no event: it has no event_id")
	}
	if file.event.Type == "" {
		file.event.Type = path.Base(dir)
	}
	incarnation, err := p.f.b.Roster.Join(ctx, file.from)
	if err != nil {
		return err
	}
	if incarnation == 0 {
		return mailfile.Refusalf("another client has registered %s, and only that client publishes in its name",
			file.from)
	}
	ctx, cancel := context.WithTimeout(ctx, engine.CallTimeout)
	defer cancel()
	file.event.RequestId = p.f.key(file, eventsDir).String()
	as := p.f.b.Broker.As(file.from).AtIncarnation(incarnation).Events()
	blocker := slices.Contains(blockerEvents, mailfile.Letters(file.event.Type))
	file.event.Blocker = p.f.b.Blockers && blocker
	_, err = as.PublishEvent(ctx, file.event)
	// REQUEST_ID_REUSED: it was published before a restart with or without --blockers, or it is another event.
	if !file.event.Blocker && blocker && client.Reason(err) == "REQUEST_ID_REUSED" {
		file.event.Blocker = true
		_, err = as.PublishEvent(ctx, file.event)
	} else if file.event.Blocker && (mailfile.Rejected(engine.Refused(err)) || engine.Ended(err)) {
		p.f.b.Log(fmt.Sprintf("publishes %s of %s without a blocker: %v", file.event.Type, file.from, err))
		file.event.Blocker = false
		_, err = as.PublishEvent(ctx, file.event)
	}
	if client.Reason(err) == "REQUEST_ID_REUSED" {
		return mailfile.Refusalf("another event of %s has the event_id %s", file.from, mailfile.OneLine(file.id, 128))
	}
	return engine.Refused(err)
}

// blockerEvents are the types of events, as mailfile.Letters returns them, that raise and resolve blockers.
var blockerEvents = []string{"blockerencountered", "blockerresolved"}
