package crashtest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

// secret is the password of the broker's user.
const secret = "s3cret-word"

// A dbFault is something that goes wrong with a PostgreSQL server while the broker works on it.
type dbFault struct {
	name    string
	begin   func(f *failingDB)
	reasons []string // with which calls fail meanwhile; none = they go on
	brief   bool     // the fault has ended by itself when begin returns
	end     func(f *failingDB)
}

func dbFaults() []dbFault {
	restart := func(f *failingDB) { testkit.NoError(f.t, f.server.Restart()) }
	return []dbFault{
		{name: "a fast restart", begin: func(f *failingDB) { f.server.End(syscall.SIGINT) },
			reasons: []string{"DATABASE_LOST"}, end: restart},
		{name: "an immediate restart", begin: func(f *failingDB) { f.server.End(syscall.SIGQUIT) },
			reasons: []string{"DATABASE_LOST"}, end: restart},
		{name: "the end of the connection of the writer", begin: func(f *failingDB) { f.endBackends("IN") },
			reasons: []string{"DATABASE_LOST"}, brief: true},
		{name: "the end of the connections of readers", begin: func(f *failingDB) { f.endBackends("NOT IN") },
			reasons: []string{"DATABASE_LOST"}, brief: true},
		{name: "no connection left", begin: (*failingDB).holdConnections, reasons: []string{"DATABASE_BUSY", "DATABASE_LOST"},
			end: func(f *failingDB) { f.admin(`ALTER ROLE brokerd CONNECTION LIMIT -1`) }},
		{name: "a full disk", begin: (*failingDB).fillDisk, reasons: []string{"DISK_FULL"},
			end: func(f *failingDB) { testkit.NoError(f.t, os.Remove(filepath.Join(f.disk, "filler"))) }},
		{name: "an idle transaction", begin: (*failingDB).holdTransaction},
		{name: "another password", begin: func(f *failingDB) {
			f.admin(`ALTER ROLE brokerd PASSWORD 'another'`)
			f.endBackends("IN")
		}, reasons: []string{"DATABASE_DENIED", "DATABASE_LOST"},
			end: func(f *failingDB) { f.admin(`ALTER ROLE brokerd PASSWORD '` + secret + `'`) }},
		{name: "a server that takes no changes", begin: func(f *failingDB) {
			f.admin(`ALTER ROLE brokerd SET default_transaction_read_only = on`)
			f.endBackends("IN")
		}, reasons: []string{"READ_ONLY", "DATABASE_LOST"},
			end: func(f *failingDB) { f.admin(`ALTER ROLE brokerd RESET default_transaction_read_only`) }},
		{name: "a frozen server", begin: func(f *failingDB) { f.server.Signal(syscall.SIGSTOP); f.frozen = true },
			end: func(f *failingDB) { f.server.Signal(syscall.SIGCONT); f.frozen = false }},
	}
}

// A failingDB is a server whose database a daemon uses as a user with a password, and a load on the daemon.
type failingDB struct {
	t      *testing.T
	ctx    context.Context
	server *postgrestest.Server
	disk   string // of the database; empty if the test cannot make one
	frozen bool
	daemon *daemon
	load   *load
}

// Each fault ends as docs/scale.md says: calls fail with a reason, or wait, the broker says so, and goes on by itself when the
// fault has ended. Nothing confirmed is lost, and nothing is there twice.
func TestDatabaseFaults_BrokerRecoversByItself(t *testing.T) {
	t.Parallel()
	program := processtest.Build(t)
	for _, fault := range dbFaults() {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			f := newFailingDB(t, program)
			f.load.start(f.ctx)
			f.load.awaitProgress(f.ctx)
			f.await("ready")
			fault.begin(f)
			switch {
			case f.frozen:
				f.await("database has not answered")
			case fault.brief || len(fault.reasons) == 0:
				f.load.awaitProgress(f.ctx)
			default: // for one of the reasons, or because a batch waits to learn whether it was committed
				f.await("database")
			}
			if fault.end != nil {
				fault.end(f)
			}
			f.load.awaitProgress(f.ctx)
			f.await("ready")
			f.load.verify(f.ctx)
			for got := range f.load.failed {
				if !slices.Contains(fault.reasons, got) {
					t.Errorf("calls failed with %q, and not with one of %q", got, fault.reasons)
				}
			}
			f.wantNoPassword()
		})
	}
}

func newFailingDB(t *testing.T, program string) *failingDB {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	f := &failingDB{t: t, ctx: ctx, server: postgrestest.Own(t), daemon: newDaemon(t, program)}
	space := ""
	if f.disk = smallDisk(t, f.server); f.disk != "" {
		space = ` TABLESPACE small`
	}
	f.admin(`CREATE ROLE brokerd LOGIN PASSWORD '` + secret + `'`)
	f.admin(`CREATE DATABASE brokerd OWNER brokerd` + space)
	access := "local all broker trust\nlocal all all scram-sha-256\n"
	testkit.NoError(t, os.WriteFile(filepath.Join(f.server.Data(), "pg_hba.conf"), []byte(access), 0o644))
	f.admin(`SELECT pg_reload_conf()`)
	password := filepath.Join(t.TempDir(), "password")
	testkit.NoError(t, os.WriteFile(password, []byte(secret+"\n"), 0o600))
	f.daemon.Store = strings.Replace(f.server.URL("brokerd"), "broker@", "brokerd@", 1)
	f.daemon.Args = []string{"--store-password-file", password, "--log-level", "info", "--metrics", "127.0.0.1:0"}
	testkit.NoError(t, f.daemon.start(ctx))
	testkit.NoError(t, noQuotas(ctx, f.daemon))
	f.load = newLoad(t, f.daemon)
	return f
}

// smallDisk mounts a small disk, makes the tablespace small on it, and returns its folder; empty for users who are not
// root.
func smallDisk(t *testing.T, server *postgrestest.Server) string {
	t.Helper()
	disk := filepath.Join(filepath.Dir(server.Data()), "disk")
	owner, err := os.Stat(server.Data())
	testkit.NoError(t, err)
	testkit.NoError(t, os.Mkdir(disk, 0o700))
	if err := unix.Mount("none", disk, "tmpfs", 0, "size=64m,mode=0700"); err != nil {
		return ""
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	s := owner.Sys().(*syscall.Stat_t)
	testkit.NoError(t, os.Chown(disk, int(s.Uid), int(s.Gid)))
	testkit.NoError(t, postgrestest.Run(server.URL("postgres"), `CREATE TABLESPACE small LOCATION '`+disk+`'`))
	return disk
}

// admin runs a statement as the superuser.
func (f *failingDB) admin(text string) {
	f.t.Helper()
	testkit.NoError(f.t, postgrestest.Run(f.server.URL("postgres"), text))
}

// endBackends ends the broker's connections that are IN, or NOT IN, those with the lock of the writer.
func (f *failingDB) endBackends(in string) {
	f.t.Helper()
	f.admin(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'brokerd' AND pid ` + in +
		` (SELECT pid FROM pg_locks WHERE locktype = 'advisory')`)
}

// holdConnections leaves the broker's user no connection.
func (f *failingDB) holdConnections() {
	f.t.Helper()
	f.admin(`ALTER ROLE brokerd CONNECTION LIMIT 0`)
	f.endBackends("IN")
	f.endBackends("NOT IN")
}

func (f *failingDB) fillDisk() {
	if f.disk == "" {
		f.t.Skip("only root can make a small disk")
	}
	fill(f.t, filepath.Join(f.disk, "filler"))
}

// holdTransaction keeps a snapshot until the end of the test, while IDLE_SECONDS (2) of load pass.
func (f *failingDB) holdTransaction() {
	f.t.Helper()
	seconds := fromEnvironment(f.t, "IDLE_SECONDS", 2)
	rate := func() float64 {
		f.load.mu.Lock()
		before := len(f.load.sent)
		f.load.mu.Unlock()
		pause(f.ctx, time.Duration(seconds)*time.Second)
		f.load.mu.Lock()
		defer f.load.mu.Unlock()
		return float64(len(f.load.sent)-before) / float64(seconds)
	}
	free := rate()
	url := strings.Replace(f.server.URL("brokerd"), "brokerd@", "broker@", 1)
	db, err := pgx.Connect(f.ctx, url)
	testkit.NoError(f.t, err)
	f.t.Cleanup(func() { _ = db.Close(context.Background()) })
	_, err = db.Exec(f.ctx, `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM messages; UPDATE sessions SET name = name WHERE false`)
	testkit.NoError(f.t, err)
	beside := rate()
	f.t.Logf("%.0f messages a second, and %.0f beside an idle transaction", free, beside)
	if seconds >= 30 && beside < free/2 { // in less time the rate says more of the machine
		f.t.Error("the idle transaction slows the broker")
	}
}

// await waits until /readyz answers with a text, and 503 unless it is "ready".
func (f *failingDB) await(text string) {
	f.t.Helper()
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(f.daemon.Stderr())
	answer := ""
	for f.ctx.Err() == nil {
		code, body := f.probe("http://" + address + "/readyz")
		if answer = fmt.Sprint(code, " ", body); strings.Contains(body, text) && (code == http.StatusOK) == (text == "ready") {
			if code, _ := f.probe("http://" + address + "/healthz"); code != http.StatusOK {
				f.t.Errorf("/healthz answers %d", code)
			}
			return
		}
		pause(f.ctx, 20*time.Millisecond)
	}
	f.t.Fatalf("/readyz does not answer %q: %s\n%s", text, answer, f.daemon.Stderr())
}

func (f *failingDB) probe(url string) (int, string) {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.ctx, http.MethodGet, url, nil)
	testkit.NoError(f.t, err)
	answer, err := http.DefaultClient.Do(request)
	testkit.NoError(f.t, err)
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	testkit.NoError(f.t, err)
	return answer.StatusCode, string(body)
}

// wantNoPassword looks for the password wherever the daemon shows something of itself.
func (f *failingDB) wantNoPassword() {
	f.t.Helper()
	st, err := f.daemon.admin.GetStatus(f.ctx, &pb.GetStatusRequest{})
	testkit.NoError(f.t, err)
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", f.daemon.PID()))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Error(err)
	}
	for what, text := range map[string]string{"log": f.daemon.Stderr(), "status": st.String(), "command line": string(line)} {
		if strings.Contains(text, secret) {
			f.t.Errorf("the %s of the daemon has the password: %s", what, text)
		}
	}
}

// A wrong password at the start is refused at once, and not shown.
func TestDatabaseFaults_WrongPasswordAtTheStart(t *testing.T) {
	t.Parallel()
	f := newFailingDB(t, processtest.Build(t))
	f.wantNoPassword()
	testkit.NoError(t, f.daemon.terminate())
	f.admin(`ALTER ROLE brokerd PASSWORD 'another'`)
	err := f.daemon.start(f.ctx)
	if err == nil || !strings.Contains(err.Error(), "does not accept the broker's user or password") || strings.Contains(err.Error(), secret) {
		t.Errorf("the daemon started, or did not say why it did not: %v", err)
	}
}
