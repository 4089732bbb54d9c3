package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	pb "brokerd/gen/brokerd/v1"
)

const (
	dialTimeout      = 5 * time.Second
	keepaliveTime    = 30 * time.Second
	replicaKeepalive = 10 * time.Second // where another replica can answer in place of one that is frozen or cut off
	keepaliveTimeout = 10 * time.Second
	maxReceive       = 8 << 20 // bytes; the broker keeps its answers under 4 MiB
	streamWindow     = 1 << 20 // bytes
	connectionWindow = 4 << 20 // bytes
)

// A Client is a connection to a broker and the identity that its calls carry. It is safe for
// concurrent use, and it reconnects by itself.
type Client struct {
	link     *link
	identity Identity
	calls    *identified
}

// link is what all clients of one connection share.
type link struct {
	conn        *grpc.ClientConn
	address     string
	targets     map[string]target // by where
	plain       string            // the first HOST:PORT of a connection without TLS; empty for others
	credential  string
	onRetry     func(err error, in time.Duration)
	patience    time.Duration                // see WithPatience
	trace       func(context.Context) string // see WithTracing; nil finds nothing
	traceParent string                       // see WithTraceParent
	dialFault   atomic.Pointer[error]        // why the last attempt to connect failed; nil once one succeeded
	dialled     atomic.Bool                  // an attempt to connect has ended
	peer        atomic.Int64                 // id of the process that listens; 0 = unknown
}

// options are what Dial was asked for.
type options struct {
	address     string
	credential  string
	tls         TLS
	identity    Identity
	wait        bool
	onRetry     func(error, time.Duration)
	patience    time.Duration
	trace       func(context.Context) string
	traceParent string
	environment Environment // finds the local broker
}

// An Option says how to connect, or as whom.
type Option func(*options)

// WithAddress names the broker: unix:///path/of/socket, tls://host:port, or host:port, which means TLS
// if there are settings for it. Without TLS, host is this machine. Replicas of one broker may have several addresses, with
// commas between them: the client connects to the first that answers, and again when it loses the connection.
func WithAddress(address string) Option {
	return func(o *options) { o.address = address }
}

// WithCredential proves who is calling; TCP always needs a credential.
func WithCredential(secret string) Option {
	return func(o *options) { o.credential = secret }
}

// WithTLS gives the settings for TLS. Addresses of sockets ignore them.
func WithTLS(settings TLS) Option {
	return func(o *options) { o.tls = settings }
}

// WithSession names the session; without it the broker takes "default".
func WithSession(name string) Option {
	return func(o *options) { o.identity.Session = name }
}

// WithAgent names the agent that calls; without it calls speak as "system", which only operators may.
func WithAgent(name string) Option {
	return func(o *options) { o.identity.Agent = name }
}

// WithIncarnation makes the broker refuse calls once the agent has registered again elsewhere
// (FAILED_PRECONDITION, STALE_INCARNATION). 0 = whichever is newest.
func WithIncarnation(n int64) Option {
	return func(o *options) { o.identity.Incarnation = n }
}

// WithFence makes the broker refuse calls once the agent has lost the lock or token with this fence
// (FAILED_PRECONDITION, FENCE_LOST). 0 = they depend on none.
func WithFence(fence int64) Option {
	return func(o *options) { o.identity.Fence = fence }
}

// WithWait makes Dial wait for a broker that is not there yet, until its context ends.
func WithWait() Option {
	return func(o *options) { o.wait = true }
}

// WithRetryNotice has f called when a Sender, Locker, Follow, FollowEvents, WatchState or Work lost its stream and is about to
// open it again in the given time, or a call with patience is about to be made again. f must return quickly and may be
// called concurrently.
func WithRetryNotice(f func(err error, in time.Duration)) Option {
	return func(o *options) { o.onRetry = f }
}

// Dial connects to a broker. Without WithAddress it looks for the local one, as FromEnvironment
// does, but takes no identity from the environment. It returns an *AddressError for an address that
// cannot be used, an *UnreachableError if no broker answers, and the context's error if that ends
// before an attempt to connect has ended. The context bounds only Dial.
func Dial(ctx context.Context, opts ...Option) (*Client, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.address == "" {
		local, err := o.environment.localBroker()
		if err != nil {
			return nil, err
		}
		o.address = local.address
		if o.credential == "" {
			o.credential = local.credential
		}
	}
	l := &link{
		address: o.address, credential: o.credential, onRetry: o.onRetry, patience: o.patience, trace: o.trace,
		traceParent: o.traceParent, targets: map[string]target{},
	}
	places := manual.NewBuilderWithScheme("brokerd")
	var state resolver.State
	for _, address := range splitAddresses(o.address) {
		to, err := parseAddress(address)
		if err != nil {
			return nil, err
		}
		if err := l.add(to, o.tls, address); err != nil {
			return nil, err
		}
		state.Addresses = append(state.Addresses, resolver.Address{Addr: to.where, ServerName: to.authority()})
	}
	places.InitialState(state)
	var err error
	if l.conn, err = grpc.NewClient("brokerd:///broker", l.dialOptions(places, o.tls)...); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", o.address, err)
	}
	if err := l.connect(ctx, o.wait); err != nil {
		l.conn.Close()
		return nil, err
	}
	return newClient(l, o.identity), nil
}

// add has the link connect to one more target.
func (l *link) add(to target, settings TLS, address string) error {
	to.secure = to.secure || to.network == "tcp" && settings != TLS{}
	switch {
	case to.secure:
		if _, err := settings.config(""); err != nil {
			return &AddressError{address, "cannot be used: " + err.Error()}
		}
	case to.network == "tcp" && !loopback(to.where):
		return &AddressError{address, "is not on this machine, which needs TLS: write tls://" + to.where}
	case to.network == "tcp" && l.plain == "":
		l.plain = to.where
	}
	l.targets[to.where] = to
	return nil
}

func newClient(l *link, id Identity) *Client {
	return &Client{link: l, identity: id, calls: newIdentified(l, id)}
}

// Close closes the connection, for all clients that share it. Streams and calls in progress end.
// Closing twice is fine.
func (c *Client) Close() { c.link.conn.Close() }

// Address returns where the broker was asked for, as given to WithAddress or found.
func (c *Client) Address() string { return c.link.address }

// Identity returns what the client's calls carry.
func (c *Client) Identity() Identity { return c.identity }

// As returns a client for another agent, in the same session and on the same connection. The empty name
// speaks as "system".
func (c *Client) As(agent string) *Client {
	return newClient(c.link, Identity{Session: c.identity.Session, Agent: agent})
}

// In returns a client for another session, with the same agent name and on the same connection.
func (c *Client) In(session string) *Client {
	return newClient(c.link, Identity{Session: session, Agent: c.identity.Agent})
}

// AtIncarnation returns a client whose calls are refused once the agent has registered again.
func (c *Client) AtIncarnation(n int64) *Client {
	id := c.identity
	id.Incarnation = n
	return newClient(c.link, id)
}

// Fenced returns a client whose calls are refused once the agent has lost the lock or token with this fence.
func (c *Client) Fenced(fence int64) *Client {
	id := c.identity
	id.Fence = fence
	return newClient(c.link, id)
}

// Messages returns the stub of MessageService.
func (c *Client) Messages() pb.MessageServiceClient { return pb.NewMessageServiceClient(c.calls) }

// Agents returns the stub of AgentService.
func (c *Client) Agents() pb.AgentServiceClient { return pb.NewAgentServiceClient(c.calls) }

// Catalog returns the stub of CatalogService.
func (c *Client) Catalog() pb.CatalogServiceClient { return pb.NewCatalogServiceClient(c.calls) }

// Channels returns the stub of ChannelService.
func (c *Client) Channels() pb.ChannelServiceClient { return pb.NewChannelServiceClient(c.calls) }

// Events returns the stub of EventService; FollowEvents subscribes and resumes by itself.
func (c *Client) Events() pb.EventServiceClient { return pb.NewEventServiceClient(c.calls) }

// Locks returns the stub of LockService.
func (c *Client) Locks() pb.LockServiceClient { return pb.NewLockServiceClient(c.calls) }

// Tokens returns the stub of TokenService.
func (c *Client) Tokens() pb.TokenServiceClient { return pb.NewTokenServiceClient(c.calls) }

// Decisions returns the stub of DecisionService.
func (c *Client) Decisions() pb.DecisionServiceClient { return pb.NewDecisionServiceClient(c.calls) }

// Blockers returns the stub of BlockerService.
func (c *Client) Blockers() pb.BlockerServiceClient { return pb.NewBlockerServiceClient(c.calls) }

// Handoffs returns the stub of HandoffService.
func (c *Client) Handoffs() pb.HandoffServiceClient { return pb.NewHandoffServiceClient(c.calls) }

// Artifacts returns the stub of ArtifactService; UploadArtifact and DownloadArtifact transfer contents.
func (c *Client) Artifacts() pb.ArtifactServiceClient { return pb.NewArtifactServiceClient(c.calls) }

// Votes returns the stub of VoteService.
func (c *Client) Votes() pb.VoteServiceClient { return pb.NewVoteServiceClient(c.calls) }

// State returns the stub of StateService.
func (c *Client) State() pb.StateServiceClient { return pb.NewStateServiceClient(c.calls) }

// Sessions returns the stub of SessionService.
func (c *Client) Sessions() pb.SessionServiceClient { return pb.NewSessionServiceClient(c.calls) }

// Credentials returns the stub of CredentialService.
func (c *Client) Credentials() pb.CredentialServiceClient {
	return pb.NewCredentialServiceClient(c.calls)
}

// Admin returns the stub of AdminService.
func (c *Client) Admin() pb.AdminServiceClient { return pb.NewAdminServiceClient(c.calls) }

// Conn returns the connection with the client's identity on every call, for other services and for stubs made elsewhere.
func (c *Client) Conn() grpc.ClientConnInterface { return c.calls }

// dialOptions are the connection's settings: windows of fixed size, because the automatic ones cost pings
// on a connection that is busy anyway, and no falling asleep, because an idle agent waits on a stream.
func (l *link) dialOptions(places resolver.Builder, settings TLS) []grpc.DialOption {
	silence := keepaliveTime
	if len(l.targets) > 1 {
		silence = replicaKeepalive
	}
	return []grpc.DialOption{
		grpc.WithResolvers(places),
		grpc.WithTransportCredentials(transport{link: l, settings: settings}),
		grpc.WithContextDialer(func(ctx context.Context, where string) (net.Conn, error) {
			return l.dial(ctx, l.targets[where].network, where)
		}),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connectionWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceive)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: silence, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstDelay, Multiplier: 2, Jitter: 0.2, MaxDelay: longestDelay},
			MinConnectTimeout: dialTimeout,
		}),
	}
}

// dial opens the connection and remembers why it could not.
func (l *link) dial(ctx context.Context, network, where string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, where)
	defer l.dialled.Store(true)
	if err != nil {
		l.dialFault.Store(&err)
		return nil, err
	}
	l.peer.Store(int64(peerProcess(conn)))
	l.dialFault.Store(nil)
	return conn, nil
}

// connect waits until the connection stands. Unless wait is set, the first failure ends it.
func (l *link) connect(ctx context.Context, wait bool) error {
	l.conn.Connect()
	for {
		state := l.conn.GetState()
		if state == connectivity.Ready {
			return nil
		}
		if state == connectivity.TransientFailure && !wait {
			return l.unreachable(l.fault(ctx))
		}
		if !l.conn.WaitForStateChange(ctx, state) {
			if l.dialled.Load() && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return l.unreachable(l.dialFault.Load())
			}
			return fmt.Errorf("connect to %s: %w", l.address, ctx.Err())
		}
	}
}

// fault returns why the last attempt to connect failed, nil if that is unknown.
func (l *link) fault(ctx context.Context) *error {
	fault := l.dialFault.Load()
	if fault == nil && l.plain != "" {
		if err := l.probe(ctx, l.plain); err != nil {
			return &err
		}
	}
	return fault
}

// splitAddresses splits addresses at their commas. One in the path of a socket is no such comma: after it, nothing begins
// that could be an address.
func splitAddresses(text string) (all []string) {
	for part := range strings.SplitSeq(text, ",") {
		trimmed := strings.TrimSpace(part)
		_, err := parseAddress(trimmed)
		path := strings.Contains(strings.TrimPrefix(trimmed, "tls://"), "/")
		if begins := strings.HasPrefix(trimmed, "unix:") || err == nil && !path; begins || len(all) == 0 {
			all = append(all, trimmed)
		} else {
			all[len(all)-1] += "," + part
		}
	}
	return all
}

// A target is where to connect to.
type target struct {
	network, where string // for net.Dial
	secure         bool   // with TLS
}

// authority is the name of the broker for HTTP/2.
func (t target) authority() string {
	if t.network == "unix" {
		return "localhost"
	}
	return t.where
}

func parseAddress(address string) (target, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		path = strings.TrimPrefix(path, "//")
		if path == "" {
			return target{}, &AddressError{address, "names no socket: write unix:///path/of/socket"}
		}
		return target{"unix", path, false}, nil
	}
	where, secure := strings.CutPrefix(address, "tls://")
	if _, _, err := net.SplitHostPort(where); err != nil {
		return target{}, &AddressError{address, "is none of unix:///path/of/socket, tls://host:port and host:port"}
	}
	return target{"tcp", where, secure}, nil
}

// loopback reports whether a host:port means this machine.
func loopback(where string) bool {
	host, _, err := net.SplitHostPort(where)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
