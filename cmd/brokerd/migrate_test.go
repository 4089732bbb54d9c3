package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
)

// cut runs a migration and kills it after it has said so many lines. It reports whether the migration had ended before.
func cut(t *testing.T, after int, args ...string) bool {
	t.Helper()
	cmd := command(t, args...)
	said, err := cmd.StderrPipe()
	apptest.NoError(t, err)
	apptest.NoError(t, cmd.Start())
	lines := bufio.NewScanner(said)
	for range after {
		lines.Scan()
	}
	_ = cmd.Process.Kill() // it may have ended
	for lines.Scan() {     // to the end
	}
	return cmd.Wait() == nil
}

// A migration that is killed leaves a target on which no brokerd starts, and the same command ends the migration.
func TestMigrate_KilledAtAnyMomentItIsRepeated(t *testing.T) {
	t.Parallel()
	p := launch(t)
	root := p.operator(t)
	for i := range 20 {
		apptest.Must(t, root.CreateSession, &pb.CreateSessionRequest{Name: fmt.Sprintf("s%d", i)})
	}
	upload(root, "first", "a content")
	upload(root, "second", "another content")
	p.end(t)
	folder, database, back := []string{"check", "--data", p.dir}, postgrestest.Database(t), filepath.Join(t.TempDir(), "back")
	onServer := []string{"check", "--store", database, "--data", t.TempDir()}
	sound := fails(t, 0, folder...)
	for _, way := range []struct {
		from, to       string
		source, target []string // checks of them
		stall          func() (free func())
	}{
		{p.dir, database, folder, onServer, func() func() { return stallFile(t, filepath.Join(p.dir, "artifacts")) }},
		{database, back, onServer, []string{"check", "--data", back}, func() func() { return stallTable(t, database) }},
	} {
		args, cuts := []string{"migrate", "--from", way.from, "--to", way.to}, 0
		closed := func(after int) (done bool) {
			t.Helper()
			out, _ := command(t, way.target...).CombinedOutput()
			if string(out) == sound {
				return true // it was killed when it had done everything
			}
			if cuts++; !strings.Contains(string(out), "a migration into ") {
				t.Errorf("after %d lines, a check of a target that is not complete: %s", after, out)
			}
			return false
		}
		free := way.stall()
		for after := 1; after <= 2; after++ { // while it checks the source, and while it copies contents
			if cut(t, after, args...) || closed(after) {
				t.Fatal("the migration has ended although it could not copy a content")
			}
		}
		free()
		for after := 4 + rand.N(3); !cut(t, after, args...) && !closed(after); after += 5 + rand.N(10) {
		}
		if cuts < 3 {
			t.Errorf("to %s: the migration was never killed while it copied rows", way.to)
		}
		if text := fails(t, 0, way.target...); text != sound {
			t.Errorf("a check of the target: %s, and of the source before: %s", text, sound)
		}
		for _, args := range [][]string{way.source, args} {
			if text := fails(t, 1, args...); !strings.Contains(text, " moved to ") {
				t.Errorf("brokerd %q after the migration: %s", args, text)
			}
		}
	}
}

// upload uploads a content.
func upload(a *apptest.Actor, name, content string) {
	a.Helper()
	stream, err := a.UploadArtifact(a.Ctx)
	apptest.NoError(a, err)
	header := &pb.ArtifactHeader{Name: name, Size: int64(len(content))}
	apptest.NoError(a, stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: header}}))
	apptest.NoError(a, stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Chunk{Chunk: []byte(content)}}))
	apptest.NoError(a, apptest.Err(stream.CloseAndRecv()))
}

// stallFile makes the last content of a folder one that a reader waits for, until free is called.
func stallFile(t *testing.T, dir string) (free func()) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	apptest.NoError(t, err)
	last := files[len(files)-1]
	apptest.NoError(t, os.Rename(last, last+".kept"))
	apptest.NoError(t, unix.Mkfifo(last, 0o600))
	return func() { apptest.NoError(t, os.Rename(last+".kept", last)) }
}

// stallTable makes a reader of contents wait in a database, until free is called.
func stallTable(t *testing.T, url string) (free func()) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), url)
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(db.Exec(t.Context(), `BEGIN; LOCK TABLE artifact_chunks IN ACCESS EXCLUSIVE MODE`)))
	return func() { apptest.NoError(t, db.Close(context.Background())) }
}

func TestMigrate_AWrongCommandLineSaysWhatIsMeant(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                                "give --from",
		"--from /a":                       "give --to",
		"--from /a --to /b":               "give one folder and one URL",
		"--from /a --to postgres://a:b@c": "to: every user of this machine sees the password",
		"--from /a --to mysql://a":        "must be a folder or the URL of a PostgreSQL database",
	} {
		if text := fails(t, 2, append([]string{"migrate"}, strings.Fields(args)...)...); !strings.Contains(text, want) {
			t.Errorf("migrate %s: %s", args, text)
		}
	}
}
