package artifacts_test

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/apptest"
	"brokerd/internal/artifacts"
	"brokerd/internal/postgrestest"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
	"brokerd/internal/testkit"
)

// A shelf is a place for contents, with the store whose rows name them.
type shelf struct {
	artifacts.Contents
	*testing.T
	store  *store.Store
	damage func(sum, content string) // replaces a content behind the broker's back
}

// onShelves runs a test with contents in a folder, and with contents in a PostgreSQL database.
func onShelves(t *testing.T, test func(s *shelf)) {
	t.Helper()
	t.Parallel()
	t.Run("folder", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		contents, err := artifacts.OpenFolder(dir)
		apptest.NoError(t, err)
		t.Cleanup(func() { apptest.NoError(t, contents.Close()) })
		test(&shelf{contents, t, testkit.Store(t, t.TempDir(), clockwork.NewRealClock(), artifacts.Migrations()),
			func(sum, content string) {
				apptest.NoError(t, os.WriteFile(filepath.Join(dir, sum), []byte(content), 0o600))
			}})
	})
	t.Run("store", func(t *testing.T) {
		t.Parallel()
		s, _ := chunkShelf(t)
		test(s)
	})
}

// put writes a content.
func (s *shelf) put(content string) (sum string) {
	s.Helper()
	draft, err := s.Create(s.Context())
	apptest.NoError(s, err)
	_, err = io.Copy(draft, strings.NewReader(content))
	apptest.NoError(s, err)
	sum = sumOf(content)
	apptest.NoError(s, draft.Keep(sum))
	apptest.NoError(s, draft.Close())
	return sum
}

// get reads a content.
func (s *shelf) get(sum string) string {
	s.Helper()
	content, err := s.Open(s.Context(), sum)
	apptest.NoError(s, err)
	defer func() { apptest.NoError(s, content.Close()) }()
	text, err := io.ReadAll(io.NewSectionReader(content, 0, content.Size()))
	apptest.NoError(s, err)
	return string(text)
}

// all returns the names of all contents and drafts.
func (s *shelf) all() (contents, drafts []string) {
	s.Helper()
	apptest.NoError(s, s.Each(s.Context(), func(c, d []string) error {
		contents, drafts = append(contents, c...), append(drafts, d...)
		return nil
	}))
	return contents, drafts
}

// own adds a row of a session that has a content.
func (s *shelf) own(sum string, size int) {
	s.Helper()
	apptest.NoError(s, s.store.Write(s.Context(), func(tx *store.Tx) error {
		tx.Exec(`INSERT INTO artifact_contents (session, sha256, size, versions) VALUES (1, ?, ?, 1)`, sum, size)
		return nil
	}))
}

// check returns the problems that the checks of contents find.
func (s *shelf) check(hashes bool) (problems []string) {
	s.Helper()
	apptest.NoError(s, s.store.Read(s.Context(), func(snap *store.Snapshot) (err error) {
		problems, err = artifacts.Checks(s.Contents, 10, hashes)[0](snap)
		return err
	}))
	return problems
}

// noise returns bytes that differ at each position.
func noise(size int) string {
	var b strings.Builder
	for r := rand.New(rand.NewPCG(1, uint64(size))); b.Len() < size; {
		b.WriteByte(byte(r.Uint32()))
	}
	return b.String()
}

const chunkSize = 256 << 10

func TestContents_AreReadFromAnyOffset(t *testing.T) {
	onShelves(t, func(s *shelf) {
		for _, size := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 3*chunkSize + 5} {
			want := noise(size)
			sum := s.put(want)
			if s.get(sum) != want {
				s.Fatalf("a content of %d bytes is another one", size)
			}
			content, err := s.Open(s.Context(), sum)
			apptest.NoError(s, err)
			for _, from := range []int{0, size / 3, chunkSize - 10, size - 1, size} {
				if from < 0 || from > size {
					continue
				}
				got := make([]byte, min(chunkSize+20, size-from))
				if n, err := content.ReadAt(got, int64(from)); n != len(got) || err != nil || string(got) != want[from:from+n] {
					s.Errorf("%d bytes from %d of %d: %d, %v", len(got), from, size, n, err)
				}
			}
			if n, err := content.ReadAt(make([]byte, 1), int64(size)); n != 0 || !errors.Is(err, io.EOF) {
				s.Errorf("behind the end: %d, %v", n, err)
			}
			apptest.NoError(s, content.Close())
		}
		if contents, drafts := s.all(); len(contents) != 6 || len(drafts) != 0 {
			s.Errorf("there are %d contents and %d drafts", len(contents), len(drafts))
		}
	})
}

func TestContents_ADraftIsNoContent(t *testing.T) {
	onShelves(t, func(s *shelf) {
		text := noise(2 * chunkSize)
		draft, err := s.Create(s.Context())
		apptest.NoError(s, err)
		_, err = draft.Write([]byte(text))
		apptest.NoError(s, err)
		if contents, drafts := s.all(); len(contents) != 0 || len(drafts) != 1 {
			s.Errorf("there are contents %v and drafts %v", contents, drafts)
		}
		if _, err := s.Open(s.Context(), sumOf(text)); !errors.Is(err, fs.ErrNotExist) {
			s.Errorf("a content that was not kept: %v", err)
		}
		apptest.NoError(s, draft.Close())
		if contents, drafts := s.all(); len(contents)+len(drafts) != 0 {
			s.Errorf("a closed draft leaves %v and %v", contents, drafts)
		}
	})
}

func TestContents_OneThatIsReadStaysToItsEnd(t *testing.T) {
	onShelves(t, func(s *shelf) {
		text := noise(3 * chunkSize)
		sum := s.put(text)
		content, err := s.Open(s.Context(), sum)
		apptest.NoError(s, err)
		part := make([]byte, 10)
		_, err = content.ReadAt(part, 0)
		apptest.NoError(s, err)
		removed, err := s.Remove(s.Context(), sum)
		apptest.NoError(s, err)
		got, err := io.ReadAll(io.NewSectionReader(content, 0, content.Size()))
		if err != nil || string(got) != text {
			s.Errorf("the reader gets %d bytes of %d, %v", len(got), len(text), err)
		}
		apptest.NoError(s, content.Close())
		if !removed {
			removed, err = s.Remove(s.Context(), sum)
			apptest.NoError(s, err)
		}
		if _, err := s.Open(s.Context(), sum); !removed || !errors.Is(err, fs.ErrNotExist) {
			s.Errorf("a removed content is opened: %t, %v", removed, err)
		}
		removed, err = s.Remove(s.Context(), sum)
		if !removed || err != nil {
			s.Errorf("to remove it twice: %t, %v", removed, err)
		}
	})
}

func TestContents_ChecksFindWhatIsWrong(t *testing.T) {
	onShelves(t, func(s *shelf) {
		sound, damaged, short := noise(chunkSize+7), strings.Repeat("x", 100), strings.Repeat("y", 2*chunkSize)
		for _, content := range []string{sound, damaged, short, ""} {
			s.own(s.put(content), len(content))
		}
		if problems := s.check(true); len(problems) != 0 {
			s.Errorf("sound contents: %v", problems)
		}
		s.damage(sumOf(damaged), strings.Repeat("z", 100))
		s.damage(sumOf(short), "y")
		s.own(sumOf("missing"), 7)
		shallow, deep := s.check(false), s.check(true)
		slices.Sort(shallow)
		want := []string{
			"the content " + sumOf("missing") + " of artifacts is missing",
			"the content " + sumOf(short) + " of artifacts has 1 bytes instead of 524288",
		}
		slices.Sort(want)
		if !slices.Equal(shallow, want) {
			s.Errorf("without hashes: %q", shallow)
		}
		if want = append(want, "the content "+sumOf(damaged)+" of artifacts is damaged: it has the hash "+
			sumOf(strings.Repeat("z", 100))); len(deep) != 3 || deep[2] != want[2] {
			s.Errorf("with hashes: %q", deep)
		}
		s.put(damaged) // the same content again
		s.put(short)
		s.put("missing")
		if problems := s.check(true); len(problems) != 0 {
			s.Errorf("after further uploads: %v", problems)
		}
	})
}

// chunkShelf returns contents in a PostgreSQL database.
func chunkShelf(t *testing.T) (s *shelf, url string) {
	t.Helper()
	url = postgrestest.Database(t)
	db, err := postgres.New(url, "", clockwork.NewRealClock())
	apptest.NoError(t, err)
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Database: db, Clock: clockwork.NewRealClock(),
		Migrations: artifacts.Migrations()})
	apptest.NoError(t, err)
	t.Cleanup(func() { apptest.NoError(t, st.Close()) })
	return &shelf{artifacts.InStore(st), t, st, func(sum, content string) {
		execute(t, url, `DELETE FROM artifact_chunks WHERE sha256 = $1 AND n > 0`, sum)
		execute(t, url, `UPDATE artifact_chunks SET data = $2 WHERE sha256 = $1`, sum, []byte(content))
	}}, url
}

// The database stores contents as they are, and a download keeps no snapshot while its client reads.
func TestContents_ChunksAreNotCompressedAndHoldNoSnapshot(t *testing.T) {
	t.Parallel()
	s, url := chunkShelf(t)
	sum := s.put(strings.Repeat("x", 2*chunkSize))
	if sizes := execute(t, url, `SELECT DISTINCT pg_column_size(data)::text FROM artifact_chunks`); sizes[0] != "262144" {
		t.Errorf("a chunk takes %s bytes", sizes)
	}
	content, err := s.Open(t.Context(), sum)
	apptest.NoError(t, err)
	_, err = content.ReadAt(make([]byte, 10), 5)
	apptest.NoError(t, err)
	if open := execute(t, url, `
		SELECT query FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR state LIKE 'idle in%')`); len(open) > 0 {
		t.Errorf("a transaction is open: %s", open)
	}
	apptest.NoError(t, content.Close())
}

// The store repeats the changes of a draft if it has lost the connection, also when they were made.
func TestContents_ADraftThatIsKeptTwiceIsThere(t *testing.T) {
	t.Parallel()
	s, _ := chunkShelf(t)
	text := noise(chunkSize + 1)
	draft, err := s.Create(t.Context())
	apptest.NoError(t, err)
	_, err = draft.Write([]byte(text))
	apptest.NoError(t, err)
	for range 2 {
		apptest.NoError(t, draft.Keep(sumOf(text)))
	}
	if s.get(sumOf(text)) != text {
		t.Error("the content is another one")
	}
}
