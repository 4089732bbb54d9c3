package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// callers is how many agents make one call at a time in the workloads that compare gRPC with HTTP.
const callers = 8

// A web makes HTTP requests as an agent, one at a time on its own connection. Without an agent, it
// makes them as an operator.
type web struct {
	client         http.Client
	session, agent string
}

// web returns a client of the broker's Unix socket, where HTTP needs no credential.
func (b *bench) web(agent string) (*web, error) {
	path, ok := strings.CutPrefix(b.address, "unix:")
	if !ok {
		return nil, fmt.Errorf("HTTP is measured on a Unix socket, and the broker's address is %s", b.address)
	}
	path = strings.TrimPrefix(path, "//")
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	transport := &http.Transport{MaxConnsPerHost: 1, DialContext: dial}
	return &web{client: http.Client{Transport: transport}, session: b.session, agent: agent}, nil
}

// open makes a request that succeeds. The caller closes the body of the answer.
func (w *web) open(ctx context.Context, method, path, body, accept string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://brokerd"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Brokerd-Session", w.session)
	r.Header.Set("Accept", accept)
	if w.agent != "" {
		r.Header.Set("Brokerd-Agent", w.agent)
	}
	answer, err := w.client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(answer.Body)
		return nil, errors.Join(fmt.Errorf("%s %s: %s %s", method, path, answer.Status, text), err, answer.Body.Close())
	}
	return answer.Body, nil
}

// do makes a request and returns the JSON of its answer.
func (w *web) do(ctx context.Context, method, path, body string) ([]byte, error) {
	answer, err := w.open(ctx, method, path, body, "application/json")
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(answer)
	return text, errors.Join(err, answer.Close())
}

// webs returns an HTTP client for each agent. The caller closes them.
func (b *bench) webs(agents []*client.Client) ([]*web, error) {
	all := make([]*web, len(agents))
	for i, c := range agents {
		var err error
		if all[i], err = b.web(c.Identity().Agent); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func closeWebs(all []*web) {
	for _, w := range all {
		w.client.CloseIdleConnections()
	}
}

// read: agents read a message. Over HTTP, the answer is JSON.
func read(overHTTP bool) func(context.Context, *bench, string) (Result, error) {
	return func(ctx context.Context, b *bench, prefix string) (Result, error) {
		ids := make([]string, callers)
		prepare := func(i int, c *client.Client) error {
			to := &pb.Target{To: &pb.Target_Agent{Agent: c.Identity().Agent}}
			message := &pb.Message{Target: to, Type: "bench", Payload: payload(0, padding(b.o.Size))}
			sent, err := c.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{message}})
			if err == nil {
				ids[i] = sent.GetResults()[0].GetId()
			}
			return err
		}
		return b.compare(ctx, prefix, overHTTP, prepare,
			func(ctx context.Context, i int, c *client.Client) error {
				_, err := c.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: ids[i]})
				return err
			},
			func(ctx context.Context, i int, w *web) error {
				_, err := w.do(ctx, http.MethodGet, "/v1/messages/"+ids[i], "")
				return err
			})
	}
}

// send: agents send messages to a role, one at a time. Each is confirmed once it is on disk.
func send(overHTTP bool) func(context.Context, *bench, string) (Result, error) {
	return func(ctx context.Context, b *bench, prefix string) (Result, error) {
		content := payload(0, padding(b.o.Size))
		message := &pb.Message{Target: toRole(prefix), Reach: pb.Reach_REACH_ONE,
			Type: "bench", Payload: content}
		body := fmt.Sprintf(`{"messages":[{"target":{"role":%q},"reach":"one","type":"bench","payload":%s}]}`,
			prefix, content)
		return b.compare(ctx, prefix, overHTTP, nil,
			func(ctx context.Context, _ int, c *client.Client) error {
				sent, err := c.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{message}})
				if err == nil && sent.GetResults()[0].GetError() != nil {
					err = fmt.Errorf("%w: %s", errRefused, sent.GetResults()[0].GetError().GetMessage())
				}
				return err
			},
			func(ctx context.Context, _ int, w *web) error {
				answer, err := w.do(ctx, http.MethodPost, "/v1/messages", body)
				if err == nil && !bytes.Contains(answer, []byte(`"error":null`)) {
					err = fmt.Errorf("%w: %s", errRefused, answer)
				}
				return err
			})
	}
}

// compare measures a call over gRPC or over HTTP.
func (b *bench) compare(ctx context.Context, prefix string, overHTTP bool, prepare func(int, *client.Client) error,
	call func(context.Context, int, *client.Client) error, request func(context.Context, int, *web) error,
) (Result, error) {
	agents, err := b.joinMany(ctx, callers, prefix+"-%d", "caller")
	defer closeAll(agents)
	if err != nil {
		return Result{}, err
	}
	if prepare != nil {
		if err := atOnce(agents, prepare); err != nil {
			return Result{}, err
		}
	}
	pages, err := b.webs(agents)
	if err != nil && overHTTP {
		return Result{}, err
	}
	defer closeWebs(pages)
	r, err := b.loop(ctx, agents, func(ctx context.Context, i int, c *client.Client) (time.Duration, error) {
		began := time.Now()
		if overHTTP {
			err := request(ctx, i, pages[i])
			return time.Since(began), err
		}
		err := call(ctx, i, c)
		return time.Since(began), err
	})
	r.LeastShare, r.MostShare = 0, 0 // they share nothing
	return r, err
}

// dashboards opens the streams of dashboards, which read overviews of the session until ctx ends.
func (b *bench) dashboards(ctx context.Context) error {
	for range b.o.Watchers {
		w, err := b.web("")
		if err != nil {
			return err
		}
		frames, err := w.open(ctx, http.MethodGet, "/v1/overview/follow", "", "text/event-stream")
		if err != nil {
			return err
		}
		if _, err := frames.Read(make([]byte, 1)); err != nil {
			return errors.Join(err, frames.Close())
		}
		b.reading.Go(func() {
			_, _ = io.Copy(io.Discard, frames) // until ctx ends
			_ = frames.Close()
		})
	}
	return nil
}
