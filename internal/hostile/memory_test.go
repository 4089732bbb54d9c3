package hostile_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

const (
	mostGrowth      = 300 << 20 // bytes of resident memory beyond those at the start
	mostSmallFrames = 48 << 20  // of these
	largestBody     = 5 << 20   // bytes of a request

	gluttonGap    = time.Second           // between the beginnings of two attacks
	longerParts   = 5                     // of the measurement: times longer than those of other attacks
	gluttonSlower = 3                     // times the quiet p99 that another client's may be, or gluttonP99
	gluttonP99    = 50 * time.Millisecond // of another client
)

// A glutton is an attack on the memory of the daemon. It makes all its calls at once.
type glutton struct {
	name  string
	calls int
	open  int    // of them that may stay open, since their requests lack a byte
	has   string // how the daemon answers some of the others: a reason, or a status of HTTP
	most  int    // bytes of resident memory beyond those at the start
	over  func(*target) beginner
}

// A beginner begins an attack. Its connections end with the context.
type beginner func(context.Context) (doer, error)

// A doer makes one call of an attack, and returns how the daemon answers it. It calls sent when it has sent
// all but what it keeps back until its context ends.
type doer func(i int, sent func()) (answer string)

// gluttons returns the attacks on the memory of the daemon.
func gluttons() []glutton {
	const login, list = pb.CredentialService_Login_FullMethodName, pb.MessageService_ListMessages_FullMethodName
	const sends = pb.MessageService_SendMessages_FullMethodName
	const (
		nobody   = pb.CredentialAccess_CREDENTIAL_ACCESS_UNSPECIFIED
		observer = pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER
		agent    = pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT
	)
	large, empty := strings.Repeat(" ", largestBody), strings.Repeat("\x12\x00", 2_600_000)
	emptyJSON := `{"messages":[` + strings.Repeat("{},", 1_600_000) + `{}]}`
	emptyPayload := `{"messages":[{"payload":[` + strings.Repeat("{},", 1_600_000) + `{}]}]}`
	const tooMuch = "TOO_MUCH_UNDER_WAY"
	return []glutton{
		{"1,000 unfinished calls without a credential", 1000, 10 * 16, tooMuch, mostGrowth,
			overGRPC(10, login, nobody, large[:4<<10], unfinished)},
		{"1,000 large unfinished calls without a credential", 1000, 0, "MESSAGE_TOO_LARGE", mostGrowth,
			overGRPC(10, login, nobody, large, unfinished)},
		{"100 requests of 2.6 million empty items", 100, 0, "INVALID_ARGUMENT", mostGrowth,
			overGRPC(4, sends, agent, empty, whole)},
		{"4 requests of 256 KiB in frames of one byte", 4, 0, "INVALID_ARGUMENT", mostSmallFrames,
			overGRPC(4, sends, agent, empty[:256<<10], smallFrames)},
		{"100 requests of 1.6 million empty items over HTTP", 100, 0, "400", mostGrowth,
			overHTTP("SendMessages", agent, emptyJSON, true)},
		{"100 requests with a payload of 1.6 million items over HTTP", 100, 0, "4", mostGrowth,
			overHTTP("SendMessages", agent, emptyPayload, true)},
		{"100 payloads for a schema with 2^25 branches", 100, 0, "steps", mostGrowth, branches},
		// 12 of them have 60 of 64 MiB.
		{"400 unfinished requests of an observer", 400, 12, tooMuch, mostGrowth,
			overGRPC(4, list, observer, large, unfinished)},
		{"400 unfinished requests of an observer over HTTP", 400, 12, "429", mostGrowth,
			overHTTP("ListMessages", observer, large, false)},
	}
}

// secret returns the secret of a new credential, or nothing for a client without one.
func (s *target) secret(as pb.CredentialAccess) (secret string) {
	s.t.Helper()
	switch as {
	case pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT:
		_, secret = s.issue(as, "default", "glutton")
	case pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER:
		_, secret = s.issue(as, "default", "")
	}
	return secret
}

// How an attack sends a frame of gRPC.
type sending func(ctx context.Context, frame string, sent func()) io.Reader

func whole(_ context.Context, frame string, _ func()) io.Reader { return strings.NewReader(frame) }

// unfinished keeps back the last byte.
func unfinished(ctx context.Context, frame string, sent func()) io.Reader {
	return newHeldBody(ctx, frame[:len(frame)-1], sent)
}

// smallFrames has HTTP/2 send a frame for each byte.
func smallFrames(_ context.Context, frame string, _ func()) io.Reader {
	return iotest.OneByteReader(strings.NewReader(frame))
}

// overGRPC returns an attack with calls on several connections.
func overGRPC(conns int, method string, as pb.CredentialAccess, text string, send sending) func(*target) beginner {
	frame := string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text)))) + text
	return func(s *target) beginner {
		secret := s.secret(as)
		return func(ctx context.Context) (doer, error) {
			var all []*http2.ClientConn //nolint:staticcheck // that of net/http makes its own connection
			for range conns {
				w, err := s.connected(ctx, "h2")
				if err != nil {
					return nil, err
				}
				c, err := new(http2.Transport).NewClientConn(w) //nolint:staticcheck // as above
				if err != nil {
					return nil, err
				}
				all = append(all, c)
			}
			return func(i int, sent func()) string {
				body := send(ctx, frame, sent)
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://brokerd"+method, body)
				if err != nil {
					return err.Error()
				}
				r.Header.Set("Content-Type", "application/grpc")
				r.Header.Set("Te", "trailers")
				if secret != "" {
					r.Header.Set("Authorization", "Bearer "+secret)
				}
				answer, err := all[i%conns].RoundTrip(r)
				if err != nil {
					return err.Error()
				}
				_ = answer.Body.Close()
				return answer.Header.Get("brokerd-reason")
			}, nil
		}
	}
}

// A heldBody is a body that has no end. Its reader waits until the body is closed or its context ends: a
// connection that breaks closes it.
type heldBody struct {
	io.Reader
	ended context.Context
	end   context.CancelFunc
	sent  func()
}

func newHeldBody(ctx context.Context, text string, sent func()) *heldBody {
	ended, end := context.WithCancel(ctx)
	return &heldBody{strings.NewReader(text), ended, end, sent}
}

// Read implements io.Reader.
func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	b.sent()
	<-b.ended.Done()
	return 0, b.ended.Err()
}

// Close implements io.Closer.
func (b *heldBody) Close() error {
	b.end()
	return nil
}

// overHTTP returns an attack with one call on each connection.
func overHTTP(method string, as pb.CredentialAccess, text string, whole bool) func(*target) beginner {
	return func(s *target) beginner {
		request := head("POST /v1/call/MessageService/"+method, "Authorization: Bearer "+s.secret(as),
			"Content-Length: "+strconv.Itoa(len(text))) + text
		return func(ctx context.Context) (doer, error) {
			return func(_ int, sent func()) string {
				w, err := s.connected(ctx, version1)
				if err != nil {
					return err.Error()
				}
				defer w.Close() //nolint:errcheck // the daemon may have closed it
				if whole {
					_, _ = io.WriteString(w, request) // the daemon may have closed the connection
				} else if _, err := io.WriteString(w, request[:len(request)-1]); err == nil {
					sent()
				}
				answer, err := http.ReadResponse(bufio.NewReader(w), nil)
				if err != nil {
					return err.Error()
				}
				_ = answer.Body.Close()
				return answer.Status
			}, nil
		}
	}
}

// connected returns a connection on loopback that ends with ctx.
func (s *target) connected(ctx context.Context, protocol string) (net.Conn, error) {
	w, err := s.transports()[1].connect(protocol)
	if err == nil {
		context.AfterFunc(ctx, func() { _ = w.Close() })
	}
	return w, err
}

// branches registers a type whose schema applies 2^25 subschemas to a payload, and returns an attack that
// sends messages of that type.
func branches(s *target) beginner {
	s.t.Helper()
	var schema strings.Builder
	schema.WriteString(`{"$ref":"#/$defs/l0","$defs":{`)
	for i := range 25 {
		fmt.Fprintf(&schema, `"l%d":{"anyOf":[{"$ref":"#/$defs/l%d"},{"$ref":"#/$defs/l%[2]d"}]},`, i, i+1)
	}
	schema.WriteString(`"l25":{"type":"integer"}}}`)
	catalog := pb.NewCatalogServiceClient(s.root.conn)
	request := &pb.RegisterMessageTypeRequest{Name: "branches", Title: "Branches", Schema: schema.String()}
	apptest.NoError(s.t, apptest.Err(catalog.RegisterMessageType(patient(s.t), request)))
	sender := s.agent("default", "sender")
	message := send(to("sender", func(m *pb.Message) { m.Type, m.Payload = "branches", `"s"` }))
	return func(ctx context.Context) (doer, error) {
		return func(int, func()) string {
			out, err := sender.SendMessages(ctx, message)
			if err != nil {
				return err.Error()
			}
			return strings.Join(out.Results[0].Warnings, " ")
		}, nil
	}
}

// attack makes an attack once. It ends when the daemon has answered all calls except those that may stay
// open, which have sent all but a byte. It returns how many calls have each answer.
func (g *glutton) attack(ctx context.Context, begin beginner) (got map[string]int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	do, err := begin(ctx)
	if err != nil {
		return nil, err
	}
	answers, sent := make(chan string, g.calls), make(chan struct{}, g.calls)
	for i := range g.calls {
		all.Go(func() {
			var once sync.Once
			settled := func() { once.Do(func() { sent <- struct{}{} }) }
			answers <- do(i, settled)
			settled()
		})
	}
	got = map[string]int{}
	for open, unsent := g.calls, g.calls; open > g.open || unsent > 0; {
		select {
		case answer := <-answers:
			got[answer]++
			open--
		case <-sent:
			unsent--
		case <-ctx.Done():
			return got, fmt.Errorf("%d calls are open, and %d have more to send", open, unsent)
		}
	}
	refusal := func(answer string) bool { return strings.Contains(answer, g.has) }
	if !slices.ContainsFunc(slices.Collect(maps.Keys(got)), refusal) {
		return got, fmt.Errorf("no call is answered with %q", g.has)
	}
	return got, nil
}

// resident returns bytes of resident memory of the daemon: VmRSS = now, VmHWM = at most since it started.
func (s *target) resident(t testing.TB, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	apptest.NoError(t, err)
	found := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no %s in %s", field, text)
	}
	n, _ := strconv.Atoi(string(found[1])) // digits
	return n << 10
}

// grown checks how much memory the daemon has occupied at most, beyond that at its start.
func (s *target) grown(t testing.TB, start, most int) {
	t.Helper()
	peak := s.resident(t, "VmHWM")
	t.Logf("resident memory: %d MiB at the start, at most %d MiB up to now", start>>20, peak>>20)
	if peak-start > most {
		t.Errorf("the resident memory grows from %d to %d MiB; the bound is %d MiB more",
			start>>20, peak>>20, most>>20)
	}
}

func TestMemory_GluttonsAreRefusedAndOccupyLittle(t *testing.T) {
	t.Parallel()
	for _, g := range gluttons() {
		t.Run(g.name, func(t *testing.T) {
			s := launch(t, nil)
			b, begin := s.bystander(), g.over(s)
			start := s.resident(t, "VmRSS")
			got, err := g.attack(patient(t), begin)
			t.Logf("answers: %v", got)
			if err != nil {
				t.Error(err)
			}
			s.grown(t, start, g.most)
			if err := b.round(patient(t)); err != nil {
				t.Errorf("another client: %v", err)
			}
		})
	}
}

// The variables of a process that makes one attack: its name, and the data folder of the daemon.
const (
	gluttonVariable = "HOSTILE_GLUTTON"
	targetVariable  = "HOSTILE_TARGET"
)

// attackElsewhere makes an attack once in a process of its own with the lowest priority: the attacker stands
// for a program on another machine. It ends early with the context.
func (s *target) attackElsewhere(ctx context.Context, g *glutton) error {
	attacker := exec.CommandContext(ctx, "nice", "-n", "19", os.Args[0], "-test.run=^TestGlutton_AttacksOnce$")
	attacker.Env = append(os.Environ(), gluttonVariable+"="+g.name, targetVariable+"="+s.Dir())
	if out, err := attacker.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// TestGlutton_AttacksOnce is the process of attackElsewhere.
func TestGlutton_AttacksOnce(t *testing.T) {
	name := os.Getenv(gluttonVariable)
	if name == "" {
		t.Skip("TestMeasure_ABystanderKeepsItsLatencyBesideGluttons starts it")
	}
	s := &target{Daemon: processtest.Of(os.Getenv(targetVariable)), t: t}
	s.meet()
	all := gluttons()
	g := &all[slices.IndexFunc(all, func(g glutton) bool { return g.name == name })]
	if got, err := g.attack(patient(t), g.over(s)); err != nil {
		t.Errorf("%v: %v", err, got)
	}
}

// TestMeasure_ABystanderKeepsItsLatencyBesideGluttons is a measurement, which make hostile runs.
func TestMeasure_ABystanderKeepsItsLatencyBesideGluttons(t *testing.T) {
	part := fromEnvironment(t, "HOSTILE_ROUND", 0)
	if part == 0 {
		t.Skip("this measurement takes minutes: make hostile")
	}
	for _, g := range gluttons() {
		t.Run(g.name, func(t *testing.T) {
			s := launch(t, nil)
			m := measurement{
				target: s, t: t, part: longerParts * part, bystander: s.bystander(),
				bound: bound{times: gluttonSlower, least: gluttonP99},
			}
			start := s.resident(t, "VmRSS")
			m.beside(gluttonGap, func(ctx context.Context) {
				if err := s.attackElsewhere(ctx, &g); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			})
			s.grown(t, start, g.most*4/3) // attacks one after the other leave garbage beside what they occupy
		})
	}
}

// Agents of TestMemory_IdleAgentsOccupyLittle, and the most memory of the daemon with all of them.
const (
	idleAgents = 1000
	idleMemory = 200 << 20 // bytes
)

func TestMemory_IdleAgentsOccupyLittle(t *testing.T) {
	t.Parallel()
	s := launch(t, nil)
	s.session("idle", &pb.SessionSettings{SendRate: proto.Float64(0)})
	connect := func(i int) error {
		c := s.client(s.Address(), party{session: "idle", agent: fmt.Sprintf("agent-%d", i)})
		if err := apptest.Err(c.RegisterAgent(patient(t), &pb.RegisterAgentRequest{})); err != nil {
			return err
		}
		claims, err := c.Claim(t.Context())
		if err != nil {
			return err
		}
		if err := claims.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{}}); err != nil {
			return err
		}
		return apptest.Err(claims.Recv())
	}
	errs := make(chan error)
	for i := range idleAgents {
		go func() { errs <- connect(i) }()
	}
	for range idleAgents {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	// Garbage: messages of 64 MiB together.
	large := to("sender", func(m *pb.Message) { m.Body = strings.Repeat("x", 64<<10) })
	request, sender := send(slices.Repeat([]*pb.Message{large}, 32)...), s.agent("idle", "sender")
	for range 32 {
		apptest.NoError(t, apptest.Err(sender.SendMessages(patient(t), request)))
	}
	peak := s.resident(t, "VmHWM")
	t.Logf("%d idle agents: at most %d MiB", idleAgents, peak>>20)
	if peak > idleMemory {
		t.Errorf("the daemon with %d idle agents has occupied %d MiB, want at most %d", idleAgents, peak>>20, idleMemory>>20)
	}
}
