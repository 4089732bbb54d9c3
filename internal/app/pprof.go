package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/rpc"
)

// servePprof serves Go's profiles if an address is given. It asks for no credential, and so is for the
// time of a measurement, and on this machine alone.
func (a *App) servePprof() error {
	if a.config.Pprof == "" || a.front != nil {
		return nil
	}
	l, err := rpc.Listen(a.config.Pprof, rpc.LoopbackAlways)
	if err != nil {
		return err
	}
	a.serveHTTP("profiles", l, profiles())
	return nil
}

func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// serveHTTP serves what is not gRPC until the end.
func (a *App) serveHTTP(what string, l net.Listener, handler http.Handler) {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	a.onStop(func(context.Context) error { return server.Close() })
	a.serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.fail(fmt.Errorf("serve %s: %w", what, err))
		}
	})
	a.config.Log.Info("serving "+what, zap.String("address", rpc.Address(l)))
}
