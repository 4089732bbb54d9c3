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
	root.Upload("first", "a content")
	root.Upload("second", "another content")
	p.end(t)
	folder, database, back := []string{"check", "--data", p.dir}, postgrestest.Database(t), filepath.Join(t.TempDir(), "back")
	onServer := []string{"check", "--store", database, "--data", t.TempDir()}
	sound := fails(t, 0, folder...)
	for _, way := range []struct {
		from, to       string
		source, target []string // checks of them
	}{
		{p.dir, database, folder, onServer},
		{database, back, onServer, []string{"check", "--data", back}},
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
		if cut(t, 1, args...) || closed(1) {
			t.Fatal("the migration has ended while it checked the source")
		}
		free := stall(t, database)
		if cut(t, 2, args...) || closed(2) {
			t.Fatal("the migration has ended although it could not copy a content")
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

// stall makes a migration wait when it reads contents of artifacts in a database, or writes them, until free is called.
func stall(t *testing.T, url string) (free func()) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), url)
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(db.Exec(t.Context(), `BEGIN; LOCK TABLE artifact_chunks IN ACCESS EXCLUSIVE MODE`)))
	return func() { apptest.NoError(t, db.Close(context.Background())) }
}

// The contents of a broker that runs with --artifacts stay where they are.
func TestMigrate_AFolderOfArtifactsServesBothSides(t *testing.T) {
	t.Parallel()
	database, back := postgrestest.Database(t), filepath.Join(t.TempDir(), "back")
	contents := filepath.Join(t.TempDir(), "contents")
	p := launch(t, "--artifacts", contents)
	version := p.operator(t).Upload("first", "a content")
	p.end(t)
	kept := filepath.Join(contents, version.GetSha256())
	before, err := os.Stat(kept)
	apptest.NoError(t, err)
	there := []string{"migrate", "--from", p.dir, "--to", database}
	want := "is missing in " + filepath.Join(p.dir, "artifacts") +
		": name the folder of artifacts with which the broker ran"
	if text := fails(t, 1, there...); !strings.Contains(text, want) {
		t.Errorf("without --artifacts: %s", text)
	}
	for _, args := range [][]string{there, {"migrate", "--from", database, "--to", back}} {
		text := fails(t, 0, append(args, "--artifacts", contents)...)
		if !strings.Contains(text, "artifacts  stay in "+contents) || !strings.Contains(text, " --artifacts "+contents+"\n") {
			t.Errorf("%q: %s", args, text)
		}
	}
	if text := fails(t, 0, "check", "--data", back, "--artifacts", contents); !strings.HasPrefix(text, "sound: ") {
		t.Errorf("a check of the folder: %s", text)
	}
	if after, err := os.Stat(kept); err != nil || !os.SameFile(before, after) {
		t.Errorf("the content was copied: %v", err)
	}
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
