package browsertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	pb "brokerd/gen/brokerd/v1"
)

const (
	warmUp       = 40 * time.Second // of work before the first picture
	largestImage = 300_000          // bytes
)

// TestScreenshots takes the pictures of docs/dashboard.md into the folder SCREENSHOTS, for make
// screenshots.
func TestScreenshots(t *testing.T) {
	folder := os.Getenv("SCREENSHOTS")
	if folder == "" {
		t.Skip("SCREENSHOTS is not set")
	}
	m := newTeam(t)
	m.work()
	m.fail("builder-3", "builder")
	for agent, activity := range map[string]string{
		"lead": "reviews the plan", "builder-1": "works on src/auth", "builder-2": "builds the form", "reviewer": "reads the login form",
	} {
		call(m, agent, pb.NewAgentServiceClient, pb.AgentServiceClient.Heartbeat,
			&pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_ACTIVE, Activity: &activity})
	}
	p := open(m, operator, "attention")
	m.chat(warmUp)
	question := m.question("bcrypt or argon2id?")
	for _, picture := range []struct{ name, view, colours string }{
		{"attention-dark", "attention", "dark"}, {"attention-light", "attention", "light"},
		{"team", "team/builder-1", "dark"}, {"queues", "queues", "light"}, {"timeline", "timeline", "dark"},
		{"conversations", "conversations/" + question, "light"}, {"dead", "dead/" + m.letter(m.letters()[0])[len("dead/"):], "dark"},
		{"locks", "locks", "light"}, {"work-dark", "work", "dark"}, {"work-light", "work", "light"},
	} {
		p.look(1280, picture.colours)
		p.show(picture.view)
		p.await(live, m.publish("the build is green"))
		p.await(`all('[data-view] [data-row]').length > 0 && document.getAnimations().every((a) => a.playState === 'finished')`)
		png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		if len(png) > largestImage {
			t.Errorf("%s has %d bytes, more than %d", picture.name, len(png), largestImage)
		}
		if err := os.WriteFile(filepath.Join(folder, "dashboard-"+picture.name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// chat makes the team send, claim and acknowledge messages for a time, at changing rates.
func (m *team) chat(d time.Duration) {
	m.t.Helper()
	m.Registered("tester", "tester")
	ctx, cancel := context.WithTimeout(m.ctx, d)
	defer cancel()
	ticks := time.NewTicker(200 * time.Millisecond)
	defer ticks.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		var batch []*pb.Message
		for j := range 1 + i*7%5 + i/20%4 {
			message := to("tester", fmt.Sprintf("Run test %d of the form", 10*i+j))
			message.ThreadId = "tests"
			batch = append(batch, message)
		}
		m.send("builder-2", batch...)
		claims := call(m, "tester", pb.NewMessageServiceClient, pb.MessageServiceClient.ClaimMessages, &pb.ClaimMessagesRequest{Max: 100}).GetClaims()
		var ids []string
		for _, c := range claims {
			ids = append(ids, c.GetClaimId())
		}
		call(m, "tester", pb.NewMessageServiceClient, pb.MessageServiceClient.AckMessages, &pb.AckMessagesRequest{Ids: ids})
		<-ticks.C
	}
}
