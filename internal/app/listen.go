package app

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"go.uber.org/zap"

	"brokerd/internal/fault"
	"brokerd/internal/guard"
	"brokerd/internal/rpc"
	"brokerd/internal/web"
)

// TLSFiles name the files that TLS needs.
type TLSFiles = rpc.TLSFiles

// ReloadCertificates reads the files for TLS again. If they cannot be used, the log gets an error,
// and the previous certificates stay in use. Without TLS it does nothing.
func (a *App) ReloadCertificates() {
	if a.certificates != nil {
		a.certificates.Reload()
	}
}

// certificates reads the certificates for TLS; nil if no listener needs them. A client in the same
// environment has variables of the same names, which must not stop a daemon without TCP.
func (c *Config) certificates() (*rpc.Certificates, error) {
	overTCP := slices.ContainsFunc(c.Listen, func(address string) bool { return !strings.HasPrefix(address, "unix:") })
	if !c.TLS.Given() || !overTCP {
		return nil, nil
	}
	return rpc.LoadCertificates(c.TLS, c.Clock, c.Log.Named("tls"))
}

// reach returns which addresses the daemon may listen on.
func (c *Config) reach() rpc.Reach {
	if c.TLS.Given() {
		return rpc.Everywhere
	}
	return rpc.Loopback
}

// checkAddresses refuses addresses that the daemon does not listen on, before it makes or opens the
// data folder.
func (c *Config) checkAddresses() error {
	for _, address := range c.Listen {
		if err := rpc.CheckAddress(address, c.reach()); err != nil {
			return fmt.Errorf("listen on %s: %w", address, err)
		}
	}
	for name, address := range map[string]string{"profiles": c.Pprof, "metrics": c.Metrics} {
		if address == "" {
			continue
		}
		if err := rpc.CheckAddress(address, rpc.LoopbackAlways); err != nil {
			return fmt.Errorf("serve %s on %s: %w", name, address, err)
		}
	}
	return nil
}

// open opens the listeners of the server.
func (a *App) open() ([]net.Listener, error) {
	if a.front != nil {
		a.passage = rpc.NewPassage()
		return []net.Listener{a.passage}, nil
	}
	listeners, err := a.config.open()
	for _, l := range listeners {
		// The server closes it too; this is for a start that ends before it serves.
		a.onStop(func(context.Context) error { _ = l.Close(); return nil })
		a.listen = append(a.listen, dialled(l, a.certificates))
	}
	return listeners, err
}

// open opens the Unix socket of the data folder and the listeners of the configuration. With an error, it returns those
// that it has opened.
func (c *Config) open() ([]net.Listener, error) {
	l, err := rpc.ListenDefault(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("listen in the data folder: %w", err)
	}
	listeners := []net.Listener{l}
	for _, address := range c.Listen {
		l, err := rpc.Listen(address, c.reach())
		if err != nil {
			return listeners, fmt.Errorf("listen on %s: %w", address, err)
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// dialled returns the address of a listener as clients dial it.
func dialled(l net.Listener, certificates *rpc.Certificates) string {
	if certificates != nil && l.Addr().Network() == "tcp" {
		return "tls://" + rpc.Address(l)
	}
	return rpc.Address(l)
}

// serve accepts the connections of a listener until the server stops.
func (a *App) serve(server *rpc.Server, l net.Listener) {
	a.serving.Go(func() {
		if err := server.Serve(l); err != nil {
			a.fail(fmt.Errorf("listen on %s: %w", rpc.Address(l), err))
		}
	})
}

// here implements admin.Facts.Here.
func (a *App) here(ctx context.Context) (dir string, listen []string) {
	if via := rpc.ViaOf(ctx); via != nil {
		return via.Dir, via.Addresses
	}
	return a.Dir(), a.Addresses()
}

// closeDoor has OpenLoopback open nothing any more.
func (a *App) closeDoor() {
	a.door.Lock()
	defer a.door.Unlock()
	a.closed = true
}

// openLoopback returns the first TCP address on which the daemon listens. If there is none, it opens one on loopback.
func (a *App) openLoopback(server *rpc.Server) (address string, opened bool, err error) {
	if a.front != nil {
		return a.front.openLoopback()
	}
	a.door.Lock()
	defer a.door.Unlock()
	if address := firstTCP(a.listen); address != "" {
		return address, false, nil
	}
	l, err := listenLoopback(a.closed)
	if err != nil {
		return "", false, err
	}
	address = dialled(l, a.certificates)
	a.listen = append(a.listen, address)
	a.config.Log.Info("listening on loopback, as an operator has asked", zap.String("address", address))
	a.serve(server, l)
	return address, true, nil
}

// firstTCP returns the first address that is no Unix socket; empty if there is none.
func firstTCP(addresses []string) string {
	for _, address := range addresses {
		if !strings.HasPrefix(address, "unix:") {
			return address
		}
	}
	return ""
}

// listenLoopback opens any free port on loopback, unless the daemon stops.
func listenLoopback(stops bool) (net.Listener, error) {
	if stops {
		return nil, fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker is stopping")
	}
	l, err := rpc.Listen("127.0.0.1:0", rpc.Loopback)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "CANNOT_LISTEN", "cannot listen on 127.0.0.1: %v", err)
	}
	return l, nil
}

// stopServer permits calls to finish until StopTimeout, by the real clock: the process that waits for
// the daemon to end measures it too. The HTTP server still writes the answers of the calls that end
// meanwhile.
func (a *App) stopServer(ctx context.Context, server *rpc.Server, pages *web.Server) error {
	ctx, cancel := context.WithTimeout(ctx, a.config.StopTimeout)
	defer cancel()
	stopped := make(chan error, 1)
	guard.Go(a.config.Log, func() error { return pages.Stop(ctx) }, func(err error) { stopped <- err })
	server.Stop(ctx)
	return <-stopped
}
