package bench

import (
	"context"
	"fmt"
	"time"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// A meter reads how much the broker's process has used, over a separate connection.
type meter struct {
	c     *client.Client
	begin time.Duration // processor time at the start
}

// meter starts measuring. The caller must call stop.
func (b *bench) meter(ctx context.Context) (*meter, error) {
	c, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	m := &meter{c: c.In(b.session).As("")}
	status, err := m.read(ctx)
	if err != nil {
		c.Close()
		return nil, err
	}
	m.begin = status.GetProcessCpuTime().AsDuration()
	return m, nil
}

// into adds the usage since the start to a result.
func (m *meter) into(ctx context.Context, r *Result) error {
	status, err := m.read(ctx)
	if err != nil {
		return err
	}
	r.CPU = (status.GetProcessCpuTime().AsDuration() - m.begin) / time.Duration(max(r.Count, 1))
	r.Memory = status.GetProcessMemoryBytes()
	return nil
}

func (m *meter) read(ctx context.Context) (*pb.GetStatusResponse, error) {
	status, err := m.c.Admin().GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("read the broker's usage: %w", err)
	}
	return status, nil
}

func (m *meter) stop() { m.c.Close() }
