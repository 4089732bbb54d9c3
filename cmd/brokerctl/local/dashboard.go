package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// A DashboardLink is what dashboard prints with -o json.
type DashboardLink struct {
	URL       string `json:"url"`
	Access    string `json:"access"`
	Session   string `json:"session"`
	ExpiresAt string `json:"expires_at"`
}

// Dashboard is brokerctl dashboard.
var Dashboard = command.Procedure[*pb.CreateLoginLinkRequest]{
	Page: command.Page{
		Use:   "dashboard",
		Short: "Print a link that opens the dashboard in a browser (operators)",
		Long: `Print a link to the dashboard. A browser can use it once, within 2 minutes, and is then
logged in for 12 hours: as operator, or with --observer as an observer of the current
session, who reads and changes nothing. "brokerctl credential list" shows the logins, and
"brokerctl credential revoke" ends one.

A broker without a TCP address opens one on 127.0.0.1, until it stops.`,
		Example: `  brokerctl dashboard
  brokerctl dashboard --observer --open`,
	},
	Options: []command.Option{
		{Field: "access", Name: "observer", Means: int32(pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER),
			Usage: "log in as an observer, who only reads"},
		{Name: "open", Type: "bool", Usage: "open the link in the browser, and wait until it is used"},
	},
	Run: func(g *command.Given, q *pb.CreateLoginLinkRequest) error {
		c := g.Caller
		broker, err := c.Connect(g.Cmd.Context())
		if err != nil {
			return err
		}
		q.Access = cmp.Or(q.GetAccess(), pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR)
		login, err := createLogin(g.Cmd.Context(), broker, q.GetAccess(), c.Found.TLS != client.TLS{})
		if err != nil {
			return err
		}
		if err := c.ShowValue(g.Cmd, login.link, login.link.text()); err != nil || !g.On("open") {
			return err
		}
		ctx, cancel := context.WithTimeout(g.Cmd.Context(), login.expires.Sub(c.Env.Now()))
		defer cancel()
		return openLink(c, ctx, login.link.URL, func(ctx context.Context) error {
			return awaitLogin(ctx, broker, login.revision)
		})
	},
}

// A login is a new link.
type login struct {
	link     DashboardLink
	expires  time.Time
	revision int64 // before its use
}

// createLogin creates a link. secure says that HOST:PORT speaks TLS.
func createLogin(
	ctx context.Context, broker *client.Client, access pb.CredentialAccess, secure bool,
) (login, error) {
	created, err := broker.Credentials().CreateLoginLink(ctx, &pb.CreateLoginLinkRequest{Access: access})
	if err != nil {
		return login{}, err
	}
	status, err := broker.Admin().GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return login{}, err
	}
	base, err := dashboardAddress(ctx, broker, status, secure)
	return login{
		link: DashboardLink{
			URL: base + "/login#" + created.GetSecret(), Access: prompt.Enum(access),
			Session: created.GetSession(), ExpiresAt: jsonform.Time(created.GetExpiresAt()),
		},
		expires: created.GetExpiresAt().AsTime(), revision: status.GetRevision(),
	}, err
}

// text is the link for people.
func (l DashboardLink) text() string {
	return fmt.Sprintf("%s\nOpen it once, within 2m. It logs in as %s, session %s, for 12h.", l.URL, l.Access, l.Session)
}

// dashboardAddress returns the address of the page: that of this connection or, on the Unix socket, the first TCP address on
// which the broker listens. A broker without one opens one on loopback.
func dashboardAddress(
	ctx context.Context, broker *client.Client, status *pb.GetStatusResponse, secure bool,
) (string, error) {
	for address := range strings.SplitSeq(broker.Address(), ",") { // of replicas, each as good as another
		if page, ok := PageAddress(strings.TrimSpace(address), secure); ok {
			return page, nil
		}
	}
	for _, listener := range status.GetListen() {
		if address, ok := PageAddress(listener, false); ok {
			return address, nil
		}
	}
	opened, err := broker.Admin().OpenLoopback(ctx, &pb.OpenLoopbackRequest{})
	if err != nil {
		return "", err
	}
	address, ok := PageAddress(opened.GetAddress(), false)
	if !ok {
		return "", problem.Failf(problem.ExitError, "a browser cannot open the address %s of the broker", opened.GetAddress())
	}
	return address, nil
}

// PageAddress returns the address of the page of a broker that listens on an address, and whether a
// browser can open it. secure says that HOST:PORT speaks TLS.
func PageAddress(address string, secure bool) (string, bool) {
	where, tls := strings.CutPrefix(address, "tls://")
	host, port, err := net.SplitHostPort(where)
	if err != nil || strings.HasPrefix(address, "unix:") {
		return "", false
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return prompt.Either(tls || secure, "https://", "http://") + net.JoinHostPort(host, port), true
}

// openLink opens a link in the browser, and returns when used does. The arguments of a program are
// visible to other users of the machine, so the browser gets the link from a file that only this user
// can read.
func openLink(c *command.Caller, ctx context.Context, link string, used func(context.Context) error) error {
	dir, err := os.MkdirTemp(c.Env.TempDir(), "brokerd-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // the link is useless by then
	page := filepath.Join(dir, "dashboard.html")
	text := `<!doctype html><meta http-equiv="refresh" content="0;url=` + html.EscapeString(link) + `">` + "\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		return err
	}
	program := prompt.Either(runtime.GOOS == "darwin", "open", "xdg-open")
	path, err := c.Env.LookPath(program)
	if err != nil {
		return fmt.Errorf("open a browser: %w; open the link by hand", err)
	}
	cmd := exec.Command(path, page)
	cmd.Env, cmd.Dir = c.Env.Variables, c.Env.ChildDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the browser may run for longer than this command
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("open a browser: %w; open the link by hand", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with the program, at the latest with this process
		if err := cmd.Wait(); err != nil {
			cancel(fmt.Errorf("open a browser: %s: %w; open the link by hand", program, err))
		}
	}()
	return used(ctx)
}

// awaitLogin waits for a login after a revision.
func awaitLogin(ctx context.Context, broker *client.Client, after int64) error {
	filter := &pb.EventFilter{Types: []string{"credential.issued"}}
	for event, err := range broker.FollowEvents(ctx, client.EventOptions{After: after, Filter: filter}) {
		if err != nil {
			return err
		}
		var details struct{ Description string }
		if err := json.Unmarshal([]byte(event.GetDetails()), &details); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		if details.Description == "dashboard" {
			return nil
		}
	}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return problem.Failf(problem.ExitNothing, "the browser has not used the link within 2m")
	}
	return context.Cause(ctx)
}

// OperatorLink returns the lines with a link to the dashboard of the demo's broker.
func OperatorLink(ctx context.Context, broker *client.Client) (string, error) {
	login, err := createLogin(ctx, broker, pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR, false)
	return login.link.text(), err
}
