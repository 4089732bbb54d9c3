package harness

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// most is how many sessions are kept: those that are alive, and the last used of the others.
const most = 200

// A Session is a session of a coding agent that has an agent's name, or an MCP server that is not told its session.
type Session struct {
	Broker  string    `json:"broker"`  // with which broker, and which session of it: any text that is the same for all of them
	Base    string    `json:"base"`    // the name that it asked for
	Name    string    `json:"name"`    // the name that it has
	ID      string    `json:"id"`      // as the coding agent names it; empty for a server
	Server  Process   `json:"server"`  // the server; zero for a session
	Program string    `json:"program"` // such as claude-code
	Process Process   `json:"process"` // of the coding agent; it runs one session at a time, unless Lock is set
	Lock    string    `json:"lock"`    // a file that the coding agent keeps locked while the session is alive; empty = none
	Used    time.Time `json:"used"`
}

// Alive reports whether the session, or the server, still runs.
func (s *Session) Alive() bool {
	if s.ID == "" {
		return s.Server.Alive()
	}
	if s.Lock != "" {
		if held, err := Locked(s.Lock); err == nil {
			return held
		}
	}
	return s.Process.Alive()
}

// Locked reports whether a process keeps a file locked. The error is that of opening the file.
func Locked(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // which also releases the lock
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK), nil
}

// follows reports whether the two are sessions that one process has one after the other, as after /clear, or a
// session and its server.
func (s *Session) follows(other *Session) bool {
	return s.Broker == other.Broker && s.Process == other.Process && s.Process != Process{} && s.Lock == "" && other.Lock == "" &&
		(s.ID != "" || other.ID != "" || s.Server == other.Server)
}

// Sessions are the sessions of a user on this machine.
type Sessions struct {
	dir string
	now func() time.Time
}

// Open returns the sessions whose files are in a folder, which need not exist. now tells the time.
func Open(dir string, now func() time.Time) *Sessions { return &Sessions{dir, now} }

// Take gives a session a name and stores it. A session that had a name gets it again, unless another living
// session has it. names are those that are tried otherwise, in this order; elsewhere reports whether another
// agent, of no session on this machine, has a name, and may be nil. Errors: ErrTaken if no name is free, those
// of elsewhere, and those of files.
func (s *Sessions) Take(wanted Session, names []string, elsewhere func(name string) (bool, error)) (Session, error) {
	asked := map[string]bool{} // what elsewhere has answered
	for {
		one, ask, err := s.take(wanted, names, func(name string) (taken, known bool) {
			taken, known = asked[name]
			return taken, known || elsewhere == nil
		})
		if err != nil || ask == "" {
			return one, err
		}
		if asked[ask], err = elsewhere(ask); err != nil { // it may wait, so nothing is locked meanwhile
			return Session{}, err
		}
	}
}

// take is Take with what is known of the names. If it has to know more, it returns the name to ask for.
func (s *Sessions) take(wanted Session, names []string, elsewhere func(name string) (taken, known bool),
) (one Session, ask string, err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return Session{}, "", err
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return Session{}, "", err
	}
	defer lock.Close() //nolint:errcheck // nothing was written
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return Session{}, "", err
	}
	all := s.prune(s.all())
	own := slices.IndexFunc(all, func(other Session) bool {
		return other.Broker == wanted.Broker && s.file(&other) == s.file(&wanted)
	})
	if own < 0 || wanted.ID == "" { // a server has the name of its session
		if at := slices.IndexFunc(all, func(other Session) bool {
			return (wanted.ID != "" || other.ID != "") && wanted.follows(&other)
		}); at >= 0 {
			own = at
		}
	}
	had := ""
	if own >= 0 && all[own].Base == wanted.Base {
		had = all[own].Name
		names = append([]string{had}, names...)
	}
	wanted.Used = s.now()
	for _, name := range names {
		if slices.ContainsFunc(all, func(other Session) bool {
			return other.Broker == wanted.Broker && other.Name == name && s.file(&other) != s.file(&wanted) &&
				!wanted.follows(&other) && other.Alive()
		}) {
			continue
		}
		switch taken, known := elsewhere(name); {
		case name == had:
		case !known:
			return Session{}, name, nil
		case taken:
			continue
		}
		wanted.Name = name
		s.supersede(&wanted, all)
		return wanted, "", s.write(&wanted)
	}
	return Session{}, "", ErrTaken
}

// prune removes the sessions that were used longest ago, of those that have ended, until the most are left.
func (s *Sessions) prune(all []Session) []Session {
	for i := len(all) - 1; i >= 0 && len(all) > most; i-- {
		if !all[i].Alive() {
			_ = os.Remove(s.file(&all[i]))
			all = slices.Delete(all, i, i+1)
		}
	}
	return all
}

// supersede notes that the process of a session runs no other one now, and forgets servers that have ended.
func (s *Sessions) supersede(by *Session, all []Session) {
	for _, other := range all {
		switch {
		case s.file(&other) == s.file(by):
		case other.ID == "":
			if !other.Alive() {
				_ = os.Remove(s.file(&other))
			}
		case by.ID != "" && by.follows(&other):
			other.Process = Process{}
			_ = s.write(&other)
		}
	}
}

// ErrTaken says that all names are in use.
var ErrTaken = errors.New("all names are in use")

// Of returns the session with an id; false if there is none.
func (s *Sessions) Of(id string) (Session, bool) {
	one, err := s.read(s.file(&Session{ID: id}))
	return one, err == nil && id != "" && one.ID == id
}

// In returns the session that the nearest of the processes runs now, or without one its server; false if none of
// them runs one, or if it runs several at once.
func (s *Sessions) In(processes []Known) (Session, bool) {
	all := s.all()
	for _, p := range processes {
		var found, servers []Session
		for _, one := range all {
			switch {
			case one.Process != p.Process || !one.Alive():
			case one.ID == "":
				servers = append(servers, one)
			default:
				found = append(found, one)
			}
		}
		if len(found) == 0 {
			found = servers
		}
		if len(found) > 0 {
			return found[0], len(found) == 1
		}
	}
	return Session{}, false
}

// Any reports whether any session is kept, which costs less than to look for one.
func (s *Sessions) Any() bool {
	_, err := os.Stat(s.dir)
	return err == nil
}

// End notes that a session has ended: its name is free at once.
func (s *Sessions) End(id string) {
	if one, ok := s.Of(id); ok {
		one.Process, one.Lock = Process{}, ""
		_ = s.write(&one) // otherwise its process tells
	}
}

// all returns the sessions, the last used first. It skips what makes no sense.
func (s *Sessions) all() []Session {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil
	}
	var all []Session
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		if one, err := s.read(filepath.Join(s.dir, e.Name())); err == nil {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b Session) int {
		return cmp.Or(b.Used.Compare(a.Used), strings.Compare(a.ID, b.ID))
	})
	return all
}

const suffix = ".session"

// file returns the file of a session, or of a server.
func (s *Sessions) file(one *Session) string {
	key := sha256.Sum256([]byte(one.ID))
	if one.ID == "" {
		key = sha256.Sum256(fmt.Appendf(nil, "server %d %d", one.Server.ID, one.Server.Start))
	}
	return filepath.Join(s.dir, fmt.Sprintf("%x%s", key[:8], suffix))
}

func (s *Sessions) read(file string) (one Session, err error) {
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &one)
	}
	return one, err
}

// write replaces the file of a session, so that readers see the old or the new one.
func (s *Sessions) write(one *Session) error {
	text, err := json.Marshal(one)
	if err != nil {
		return err
	}
	file := s.file(one)
	scratch := fmt.Sprintf("%s.%d", file, os.Getpid())
	if err := os.WriteFile(scratch, text, 0o600); err != nil {
		return err
	}
	return os.Rename(scratch, file)
}
