package mcp_test

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jonboulle/clockwork"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

// A slowBroker answers a call after its wait, and notes the longest one.
type slowBroker struct {
	grpc.ClientConnInterface
	longest time.Duration
	calls   int
}

func (b *slowBroker) Join(context.Context, string) (string, error) { return "builder-1", nil }

func (b *slowBroker) News() string { return "" }

func (b *slowBroker) Gone() bool { return false }

func (b *slowBroker) Left(bool) {}

func (b *slowBroker) Invoke(_ context.Context, _ string, args, _ any, _ ...grpc.CallOption) error {
	b.calls++
	if r, ok := args.(*pb.WaitTasksRequest); ok {
		b.longest = max(b.longest, r.GetWait().AsDuration())
		time.Sleep(r.GetWait().AsDuration()) //nolint:forbidigo // of the bubble
	}
	return nil
}

func TestCall_ALongWaitReportsProgressAndIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := sdk.NewInMemoryTransports()
		broker := &slowBroker{}
		server := mcp.New(mcp.Options{Agent: func(context.Context) mcp.Agent { return broker }, Clock: clockwork.NewRealClock(), Mark: prompt.NewMark, Harness: "test"})
		apptest.NoError(t, apptest.Err(server.Connect(t.Context(), here, nil)))
		var reports []float64
		client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
				reports = append(reports, r.Params.Progress)
			},
		})
		session, err := client.Connect(t.Context(), there, nil)
		apptest.NoError(t, err)
		for _, wait := range []int{45, 3600} {
			params := &sdk.CallToolParams{Name: "task", Arguments: json.RawMessage(`{"action":"wait","id":"a","wait":` + strconv.Itoa(wait) + `}`)}
			params.SetProgressToken("1")
			if _, err := session.CallTool(t.Context(), params); err != nil {
				t.Error(err)
			}
			if wait == 45 && !slices.Equal(reports, []float64{10, 20, 30, 40}) {
				t.Errorf("%v", reports)
			}
		}
		if broker.longest != 50*time.Second {
			t.Errorf("a call waits %v", broker.longest)
		}
		broker.calls = 0
		vote := &sdk.CallToolParams{Name: "decide", Arguments: json.RawMessage(`{"action":"show","id":"v-1","wait":50}`)}
		if _, err := session.CallTool(t.Context(), vote); err != nil {
			t.Error(err)
		}
		if broker.calls > 300 {
			t.Errorf("%d calls in 50 s to a broker that answers early", broker.calls)
		}
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	})
}
