package rpc

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipelined sends texts to an HTTP server, each after the answers to the requests of those before it. It
// returns what Pipelined reports for each request.
func pipelined(t *testing.T, texts ...string) (reported []bool) {
	t.Helper()
	l := NewPassage()
	server := &http.Server{
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			reported = append(reported, Pipelined(r.Context()))
			synctest.Wait() // the server looks for bytes of the next request
		}),
		ConnContext:       ConnContext,
		ReadHeaderTimeout: time.Minute,
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // it ends with Close
	}()
	client, conn := net.Pipe()
	l.Pass(&webConn{Conn: conn, info: connection{}})
	answers := bufio.NewReader(client)
	for _, text := range texts {
		go func() { _, _ = io.WriteString(client, text) }()
		for range strings.Count(text, "HTTP/1.1") {
			answer, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
		}
	}
	_ = server.Close()
	<-served
	_ = client.Close()
	return reported
}

func TestPipelined_RequestsThatDoNotWaitForAnAnswer(t *testing.T) {
	t.Parallel()
	const (
		get  = "GET / HTTP/1.1\r\nHost: b\r\n\r\n"
		post = "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}"
	)
	for name, c := range map[string]struct {
		texts []string
		want  []bool
	}{
		"one at a time":          {[]string{get, post, get, post}, []bool{false, false, false, false}},
		"all at once":            {[]string{get + get + get}, []bool{false, true, true}},
		"again after the answer": {[]string{get + get, get}, []bool{false, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := pipelined(t, c.texts...); !slices.Equal(got, c.want) {
					t.Errorf("Pipelined reports %v, want %v", got, c.want)
				}
			})
		})
	}
}
