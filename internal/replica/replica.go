package replica

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/rpc"
	"brokerd/internal/store/postgres"
)

const (
	// beat is how often a replica looks who leads, by its own clock.
	beat = 500 * time.Millisecond
	// haste is how often it looks while a client waits for a leader.
	haste = 50 * time.Millisecond
	// signs is how often it shows that it is there.
	signs = 10 * time.Second

	// patience is how long a client's connection waits for a leader. It is less than that of clients with a connection.
	patience = 4 * time.Second
	// handshakeTime is the most for the handshake with a client, and for that with another replica.
	handshakeTime = 10 * time.Second
	// endTime is how long a connection may stay half open after the leader has closed its end.
	endTime = 5 * time.Second
	// reachTime is the most for an attempt to reach the leader.
	reachTime = 2 * time.Second
	// lookTime is the most for a look.
	lookTime = 2 * time.Second
	// blind is how long a leader leads without the list of replicas. Another one may lead after a lease.
	blind = 2 * postgres.Lease

	// maxHandshakes is how many handshakes with other replicas may be under way.
	maxHandshakes = 256
)

// A Roster is the list of the replicas, in the database: see postgres.Roster.
type Roster interface {
	Sign(ctx context.Context, me postgres.Replica) error
	Lead(ctx context.Context, me postgres.Replica, epoch int64) (bool, error)
	Leave(ctx context.Context, me postgres.Replica) error
	Replicas(ctx context.Context) ([]postgres.Replica, error)
	EndSilent(ctx context.Context) (bool, error)
}

// Options say what a replica needs.
type Options struct {
	Address  string // HOST:PORT at which other replicas reach this one; port 0 is any that is free
	Dir      string // its data folder, for GetStatus
	Version  string
	Operator [sha256.Size]byte // SHA-256 of the secret in the operator's file
	Roster   Roster
	Entrance rpc.Entrance
	Patience time.Duration // how long a client's connection waits for a leader; 4 s if 0
	Log      *zap.Logger
}

// A Replica is the part of a process that outlives a change of the leader. Its methods may be called concurrently.
type Replica struct {
	me       postgres.Replica
	dir      string
	own      tls.Certificate
	roster   Roster
	entrance rpc.Entrance
	patience time.Duration
	log      *zap.Logger

	among      net.Listener  // of the other replicas
	handshakes chan struct{} // has a place for each that is under way
	refuser    *refuser      // of clients while there is no leader
	look       chan struct{} // capacity 1: look now
	forwarded  atomic.Int64  // connections, since the start

	waiting  atomic.Int32 // clients that wait for a leader
	running  sync.WaitGroup
	closing  context.Context
	endClose context.CancelFunc

	mu      sync.Mutex // guards the fields below
	clients []net.Listener
	leading *rpc.Passage       // where connections go while this replica leads; nil while it does not
	epoch   int64              // under which it leads
	lost    chan error         // gets why it must not lead any more; capacity 1
	list    []postgres.Replica // as of the last look
	changed chan struct{}      // closed when another certificate is listed, or another replica leads
	settled chan struct{}      // closed once a replica leads
	term    context.Context    // done when another replica leads
	endTerm context.CancelFunc
}

// New listens for other replicas. Start begins to serve them.
func New(o Options) (*Replica, error) {
	among, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for other replicas on %s: %w", o.Address, err)
	}
	return newReplica(o, among)
}

// newReplica is New with the listener of Options.Address.
func newReplica(o Options, among net.Listener) (*Replica, error) {
	own, err := newCertificate()
	if err != nil {
		return nil, errors.Join(err, among.Close())
	}
	host, _, _ := net.SplitHostPort(o.Address) // it has been listened on
	_, port, _ := net.SplitHostPort(among.Addr().String())
	r := &Replica{
		me: postgres.Replica{
			Address: net.JoinHostPort(host, port), Certificate: own.Certificate[0], Operator: o.Operator[:], Version: o.Version,
		},
		own: own, dir: o.Dir, roster: o.Roster, entrance: o.Entrance, log: o.Log, patience: cmp.Or(o.Patience, patience),
		among: among, handshakes: make(chan struct{}, maxHandshakes), look: make(chan struct{}, 1),
		changed: make(chan struct{}), settled: make(chan struct{}),
	}
	r.closing, r.endClose = context.WithCancel(context.Background())
	r.term, r.endTerm = context.WithCancel(r.closing)
	return r, nil
}

// Start begins to look who leads, and to accept what other replicas forward.
func (r *Replica) Start() {
	r.refuser = newRefuser()
	r.running.Go(r.watch)
	r.running.Go(r.receive)
}

// Address returns where other replicas reach this one.
func (r *Replica) Address() string { return r.me.Address }

// Lead has the connections of clients go to a passage, those that other replicas forward included, until the passage is
// closed or Follow is called. The broker behind it commits under an epoch.
//
// lost gets an error when another replica leads, or may lead because this one cannot read the list.
func (r *Replica) Lead(ctx context.Context, to *rpc.Passage, epoch int64) (lost <-chan error, err error) {
	if err := r.enter(ctx, epoch); err != nil {
		return nil, err
	}
	gets := make(chan error, 1)
	r.change(func() { r.leading, r.epoch, r.lost = to, epoch, gets })
	return gets, nil
}

// errDeposed is the error of a replica that cannot enter the list as the leader.
var errDeposed = errors.New("another replica leads, or has the address of this one")

// enter enters this replica in the list, as the leader.
func (r *Replica) enter(ctx context.Context, epoch int64) error {
	err := r.roster.Sign(ctx, r.me)
	entered := false
	if err == nil {
		entered, err = r.roster.Lead(ctx, r.me, epoch)
	}
	if err == nil && !entered {
		err = errDeposed
	}
	if err != nil {
		return fmt.Errorf("enter the leader in the list of replicas: %w", err)
	}
	return nil
}

// Follow has further connections go to the leader again.
func (r *Replica) Follow() { r.change(func() { r.leading = nil }) }

// change changes fields that mu guards. If another replica leads by that, it ends the connections that were forwarded
// before.
func (r *Replica) change(what func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	here, leader, known := r.leading, certificateOf(r.listed()), certificates(r.list)
	what()
	led := r.leading == here && certificateOf(r.listed()) == leader
	if led && maps.Equal(certificates(r.list), known) {
		return
	}
	close(r.changed)
	r.changed = make(chan struct{})
	if (r.leading != nil || r.listed() != nil) && !closed(r.settled) {
		close(r.settled)
	}
	if !led {
		r.endTerm() // clients connect again
		r.term, r.endTerm = context.WithCancel(r.closing)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Settled returns a channel that is closed once this replica or another one leads.
func (r *Replica) Settled() <-chan struct{} { return r.settled }

// listed returns the replica that leads by the list; nil if none does. The caller holds mu.
func (r *Replica) listed() *postgres.Replica {
	for i, one := range r.list {
		if one.Leading {
			return &r.list[i]
		}
	}
	return nil
}

func certificateOf(one *postgres.Replica) string {
	if one == nil {
		return ""
	}
	return string(one.Certificate)
}

func certificates(list []postgres.Replica) map[string]struct{} {
	all := map[string]struct{}{}
	for _, one := range list {
		all[string(one.Certificate)] = struct{}{}
	}
	return all
}

// A state says where connections go.
type state struct {
	here    *rpc.Passage      // to the broker of this replica, which leads; nil if it does not
	leader  *postgres.Replica // to this one; nil if none leads, as far as is known
	changed <-chan struct{}   // closed when the list or the leader is another one
	term    context.Context   // done when another replica leads
}

func (r *Replica) state() state {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := state{here: r.leading, changed: r.changed, term: r.term}
	if one := r.listed(); s.here == nil && one != nil && string(one.Certificate) != string(r.me.Certificate) {
		leader := *one
		s.leader = &leader
	}
	return s
}

// watch looks who leads, in each beat and whenever a client waits. A replica that does not lead ends the connection of
// a leader that has fallen silent.
func (r *Replica) watch() {
	ticker := time.NewTicker(beat) //nolint:forbidigo // the server measures by another clock
	defer ticker.Stop()
	var signed, looked time.Time
	for r.closing.Err() == nil {
		now := time.Now() //nolint:forbidigo // as above
		if r.lookOnce() {
			looked = now
		}
		r.examine(now.Sub(looked))
		if now.Sub(signed) > signs {
			err := r.roster.Sign(r.closing, r.me)
			if r.note("sign the list of replicas", err); err == nil {
				signed = now
			}
		}
		if r.waiting.Load() > 0 {
			pause(r.closing, haste)
			continue
		}
		select {
		case <-r.closing.Done():
			return
		case <-ticker.C:
		case <-r.look:
			pause(r.closing, haste) // a stranger can ask for a look
		}
	}
}

// lookOnce looks who leads, and reports whether it could.
func (r *Replica) lookOnce() bool {
	ctx, cancel := context.WithTimeout(r.closing, lookTime)
	defer cancel()
	if r.state().here == nil {
		ended, err := r.roster.EndSilent(ctx)
		r.note("look for a silent leader", err)
		if ended {
			r.log.Warn("the leader was silent for too long: its connection to the database was ended",
				zap.Duration("lease", postgres.Lease))
		}
	}
	list, err := r.roster.Replicas(ctx)
	if err == nil {
		r.change(func() { r.list = list })
	}
	r.note("read the list of replicas", err)
	return err == nil
}

// examine gives the lead up if another replica has it, or may have it, since the list could not be read for some time.
// If the list does not have this one as the leader, another process may have signed with its address by mistake.
func (r *Replica) examine(unread time.Duration) {
	r.mu.Lock()
	leads, epoch, lost := r.leading != nil, r.epoch, r.lost
	listed := certificateOf(r.listed()) == string(r.me.Certificate)
	r.mu.Unlock()
	var err error
	switch {
	case !leads:
		return
	case unread > blind:
		err = fmt.Errorf("the list of replicas could not be read for %v", unread.Round(time.Second))
	case !listed:
		if err = r.enter(r.closing, epoch); !errors.Is(err, errDeposed) {
			r.note("enter the list of replicas", err)
			return
		}
	default:
		return
	}
	select {
	case lost <- err:
	default:
	}
}

// note logs an error of the list: it is expected while no broker has made the tables, and while the server is away.
func (r *Replica) note(what string, err error) {
	if err != nil && r.closing.Err() == nil {
		r.log.Debug("cannot "+what, zap.Error(err))
	}
}

// poke has watch look soon.
func (r *Replica) poke() {
	select {
	case r.look <- struct{}{}:
	default:
	}
}

// knows reports whether a certificate is in the list of replicas. It looks again for one that is not.
func (r *Replica) knows(certificate []byte) bool {
	ctx, cancel := context.WithTimeout(r.closing, reachTime)
	defer cancel()
	for {
		r.mu.Lock()
		_, known := certificates(r.list)[string(certificate)]
		changed := r.changed
		r.mu.Unlock()
		if known {
			return true
		}
		r.poke()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Operator reports whether a SHA-256 is that of the secret of an operator of a replica.
func (r *Replica) Operator(sum [sha256.Size]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.list, func(one postgres.Replica) bool {
		return one.Seen <= postgres.Absent && subtle.ConstantTimeCompare(one.Operator, sum[:]) == 1
	})
}

// Ready returns nil if this replica leads, or can reach the leader.
func (r *Replica) Ready(ctx context.Context) error {
	at := r.state()
	switch {
	case at.here != nil:
		return nil
	case at.leader == nil:
		return errNoLeader
	}
	conn, err := r.dial(ctx, *at.leader, greeting{Probe: true, Replica: r.me.Address})
	if err != nil {
		return fmt.Errorf("%w: %s: %w", errOutOfReach, at.leader.Address, err)
	}
	_ = conn.Close() // the answer has come
	return nil
}

// A Standing is what one replica knows of all.
type Standing struct {
	Address   string // of this one
	Leads     bool   // this one does
	Replicas  []postgres.Replica
	Forwarded int64 // connections that this one has forwarded since its start
}

// Standing returns what this replica knows, by its last look.
func (r *Replica) Standing() Standing {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Standing{r.me.Address, r.leading != nil, slices.Clone(r.list), r.forwarded.Load()}
}

// LeaderBefore returns the address of the replica that led before an epoch; empty if it has left the list.
func (r *Replica) LeaderBefore(epoch int64) string {
	var before postgres.Replica
	for _, one := range r.Standing().Replicas {
		if one.Epoch < epoch && one.Epoch > before.Epoch {
			before = one
		}
	}
	return before.Address
}

// Close leaves the list, closes all listeners and connections, and waits until nothing runs any more.
func (r *Replica) Close(ctx context.Context) error {
	r.endClose()
	if err := r.roster.Leave(ctx, r.me); err != nil { // it counts as lost
		r.log.Debug("cannot leave the list of replicas", zap.Error(err))
	}
	errs := []error{r.among.Close()}
	r.mu.Lock()
	for _, l := range r.clients {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	r.mu.Unlock()
	r.running.Wait()
	if r.refuser != nil {
		errs = append(errs, r.refuser.stop())
	}
	return errors.Join(errs...)
}

// pause waits, unless ctx ends before.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d) //nolint:forbidigo // as in watch
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
