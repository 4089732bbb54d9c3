package apptest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"

	"brokerd/internal/app"
)

// WithMetrics makes the broker serve its metrics: see Broker.Ended.
func WithMetrics() Option {
	return func(c *app.Config) { c.Metrics = "127.0.0.1:0" }
}

// Ended waits until a number of calls of a method ("LockService/AcquireLocks") have ended, and
// returns how many of them have ended with each gRPC code. A client that cancels a call cannot tell
// by itself whether the broker had sent the answer before.
func (b *Broker) Ended(method string, calls int) map[string]int {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	line := regexp.MustCompile(`brokerd_calls_total{code="(\w+)",method="` + method + `"} (\d+)`)
	for {
		text, err := b.metrics(ctx)
		if err != nil {
			b.Fatal("read the metrics", err)
		}
		total, codes := 0, map[string]int{}
		for _, found := range line.FindAllStringSubmatch(text, -1) {
			n, _ := strconv.Atoi(found[2]) // the expression matches numbers alone
			codes[found[1]] = n
			total += n
		}
		if total == calls {
			return codes
		}
	}
}

// metrics returns the page of metrics.
func (b *Broker) metrics(ctx context.Context) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.app.Metrics()+"/metrics", http.NoBody)
	if err != nil {
		return "", err
	}
	r.Close = true
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(answer.Body)
	return string(text), errors.Join(err, answer.Body.Close())
}
