package rpc_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/identity"
	"brokerd/internal/rpc"
)

const (
	loginMethod = pb.CredentialService_Login_FullMethodName
	getMethod   = pb.SessionService_GetSession_FullMethodName
	sendMethod  = pb.MessageService_Send_FullMethodName
	largest     = 5 << 20 // bytes of a request
)

// observer gives the world a credential that reads, and returns the headers of its calls.
func (w *world) observer(secret string) []string {
	w.grants[secret] = &identity.Grant{Access: identity.Observer, Session: "default"}
	return []string{"authorization", "Bearer " + secret}
}

func TestReceive_RequestWithoutACredentialHasAtMost4KiB(t *testing.T) {
	t.Parallel()
	c := openWire(t, serve(t).tcp)
	c.begin(loginMethod, 4<<10+1, 1)
	c.wantEnd(codes.ResourceExhausted, "MESSAGE_TOO_LARGE")
	c.begin(getMethod, 4<<10+1, 1)
	c.wantEnd(codes.Unauthenticated, "CREDENTIAL_REQUIRED")
}

func TestReceive_UnfinishedRequestsWithoutACredentialAreFew(t *testing.T) {
	t.Parallel()
	w := serve(t)
	c := openWire(t, w.tcp)
	for range 1000 {
		c.begin(loginMethod, 4<<10, 1<<10)
	}
	for range 1000 - 16 {
		c.wantEnd(codes.ResourceExhausted, "TOO_MUCH_UNDER_WAY")
	}
	c.wantNone()
	other := openWire(t, w.tcp)
	other.begin(loginMethod, 0, 0)
	other.wantNone()
}

func TestReceive_RequestBeyondTheLimitIsRefusedUnread(t *testing.T) {
	t.Parallel()
	c := openWire(t, serve(t).socket)
	for _, size := range []int{largest + 1, 1 << 31} {
		c.begin(getMethod, size, 1)
		c.wantEnd(codes.ResourceExhausted, "MESSAGE_TOO_LARGE")
		c.begin(sendMethod, size, 1)
		c.wantEnd(codes.ResourceExhausted, "MESSAGE_TOO_LARGE")
	}
}

func TestReceive_UnfinishedRequestsOfACallerAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	w := serve(t)
	observer, other := w.observer("reader"), w.observer("other")
	for name, headers := range map[string][]string{
		"observer": observer, "operator": {"authorization", "Bearer " + w.secret},
		"agent": {"authorization", "Bearer " + w.secret, "brokerd-agent", "a"},
	} {
		one, two := openWire(t, w.tcp, headers...), openWire(t, w.tcp, headers...)
		for range 12 { // 60 MiB
			one.begin(getMethod, largest, 1)
		}
		for range 100 {
			two.begin(getMethod, largest, 1)
		}
		for range 100 {
			if e := nextEnd(t, one, two); e.reason != "TOO_MUCH_UNDER_WAY" {
				t.Errorf("%s: a call ends with %v", name, e)
			}
		}
		one.wantNone()
		two.begin(getMethod, 4<<10, 1) // small ones do not count
		two.wantNone()
		one.close()
		two.close()
	}
	free := openWire(t, w.tcp, other...)
	free.begin(getMethod, largest, 1)
	free.wantNone()
}

func TestReceive_UnfinishedMessagesOfStreamsCount(t *testing.T) {
	t.Parallel()
	w := serve(t)
	c := openWire(t, w.socket, "brokerd-agent", "a")
	for range 12 {
		c.begin(sendMethod, largest, 1)
	}
	c.wantNone()
	c.begin(sendMethod, 3<<20, 1) // 12 times 5.25 MiB are 63 MiB, with the windows
	c.wantEnd(codes.ResourceExhausted, "TOO_MUCH_UNDER_WAY")
	c.begin(sendMethod, 64<<10, 1) // of the window of the stream
	c.wantNone()
}

func TestReceive_UnfinishedRequestsOfAllCallersAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	w := serve(t)
	var conns []*wire
	for i := range 8 {
		c := openWire(t, w.socket, "brokerd-agent", fmt.Sprintf("a%d", i))
		for range 12 {
			c.begin(getMethod, largest, 1)
		}
		c.wantNone()
		conns = append(conns, c)
	}
	last := openWire(t, w.socket) // the daemon's own user has no other limit
	conns = append(conns, last)
	for range 7 { // 515 MiB in all
		last.begin(getMethod, largest, 1)
	}
	if e := nextEnd(t, conns...); e.reason != "TOO_MUCH_UNDER_WAY" {
		t.Errorf("a call ends with %v", e)
	}
	last.begin(getMethod, 2<<20, 1) // 512 MiB in all
	last.wantNone()
	bystander := openWire(t, w.socket, "brokerd-agent", "b")
	bystander.begin(getMethod, 60<<10, 1)
	bystander.wantNone()
	conns[0].close()
	for refused := true; refused; { // until the server has noticed
		last.begin(getMethod, largest, 1)
		probe := last.open("/brokerd.v1.None/Known")
		e := last.ended()
		if refused = e.stream != probe; refused {
			last.ended()
		}
	}
}

func TestReceive_RequestThatDoesNotEndIsEnded(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	w := serve(t, func(o *rpc.Options) { o.Clock = clock })
	for name, begin := range map[string]func(c *wire){
		"without a message":       func(c *wire) { c.open(getMethod) },
		"without the rest":        func(c *wire) { c.begin(getMethod, 100, 50) },
		"without the end":         func(c *wire) { c.begin(getMethod, 0, 0) },
		"without a credential":    func(c *wire) { c.begin(loginMethod, 100, 50) },
		"of a stream of answers":  func(c *wire) { c.begin(grpc_health_v1.Health_Watch_FullMethodName, 100, 50) },
		"of a stream of requests": func(c *wire) { c.begin(sendMethod, 100, 50) },
	} {
		t.Run(name, func(t *testing.T) {
			began := clock.Now()
			idle, c := openWire(t, w.socket), openWire(t, w.socket)
			idle.message(idle.open(sendMethod), 0, 0)
			<-idle.opened // the stream waits for its next message
			begin(c)
			c.wantNone()
			for done := false; !done; {
				clock.Advance(time.Second)
				select {
				case e := <-c.ends:
					if e.code != "4" || e.reason != "REQUEST_TIMEOUT" {
						t.Errorf("it ends with %v", e)
					}
					if after := clock.Since(began); after < 30*time.Second {
						t.Errorf("it ends after %v", after)
					}
					done = true
				case <-time.After(time.Millisecond): // for the check of the watch
				}
			}
			idle.wantNone()
		})
	}
}

func TestQuota_ACredentialHasAtMost256Connections(t *testing.T) {
	t.Parallel()
	w := serve(t)
	headers := w.observer("reader")
	login := w.observer("login of the dashboard")
	call := func(headers []string) end {
		c := openWire(t, w.tcp, headers...)
		s := c.open(getMethod)
		c.must(c.WriteData(s, true, make([]byte, 5)))
		select {
		case <-c.opened:
		case e := <-c.ends:
			return e
		}
		return c.ended()
	}
	for i := range 256 {
		if e := call(headers); e.code != "0" {
			t.Fatalf("connection %d: %v", i+1, e)
		}
	}
	if e := call(headers); e.reason != "TOO_MANY_CONNECTIONS" {
		t.Errorf("one more: %v", e)
	}
	if e := call(login); e.code != "0" {
		t.Errorf("another credential: %v", e)
	}
}

func TestQuota_ACredentialHasAtMost1000Streams(t *testing.T) {
	t.Parallel()
	w := serve(t)
	reader := calling(t, w.observer("reader")...)
	operator, other := calling(t, "authorization", "Bearer "+w.secret), calling(t, w.observer("other")...)
	one, two := grpc_health_v1.NewHealthClient(dial(t, w.tcp)), grpc_health_v1.NewHealthClient(dial(t, w.tcp))
	watch := func(ctx context.Context, c grpc_health_v1.HealthClient) error {
		stream, err := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for i := range 1000 {
		if err := watch(reader, one); err != nil {
			t.Fatalf("stream %d: %v", i+1, err)
		}
	}
	err := watch(reader, two)
	expect(t, err, codes.ResourceExhausted, "TOO_MANY_STREAMS", "")
	wantRetry(t, err, "streams", "1000")
	for name, ctx := range map[string]context.Context{"another credential": other, "an operator": operator} {
		if err := watch(ctx, two); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	local := grpc_health_v1.NewHealthClient(dial(t, w.socket))
	more := grpc_health_v1.NewHealthClient(dial(t, w.socket))
	for i := range 1001 {
		c := local
		if i == 1000 {
			c = more
		}
		if err := watch(calling(t), c); err != nil {
			t.Fatalf("stream %d of the daemon's own user: %v", i+1, err)
		}
	}
}
