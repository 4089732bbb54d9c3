package top_test

import (
	"context"
	"flag"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"go.uber.org/goleak"

	"brokerd/client"
	"brokerd/cmd/brokerctl/top"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/testkit"
)

var update = flag.Bool("update", false, "write the screens to testdata")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is the time at which a screen's clock begins.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// A screen runs a Model as bubbletea does, but runs each command to its end before the next message.
type screen struct {
	t      *testing.T
	model  tea.Model
	broker *client.Client // nil: commands are not run
	now    time.Time
	calls  int // commands that make calls
	// session is the one of the frames; empty for that of the broker's client.
	session string
}

// newScreen returns a screen of a size. Without a broker it only counts the calls.
func newScreen(t *testing.T, width, height int, color, observer bool, broker *client.Client) *screen {
	t.Helper()
	s := &screen{t: t, broker: broker, now: start}
	o := top.Options{
		Color: color, Now: func() time.Time { return s.now }, Command: testkit.Call,
		Explain: func(err error) string { return err.Error() },
	}
	do := top.Caller(t.Context(), broker)
	s.model = top.New(o, observer, func(c top.Call) tea.Cmd {
		s.calls++
		if broker == nil {
			return nil
		}
		return do(c)
	}, func(session string) tea.Cmd {
		s.session = session
		return nil
	})
	s.send(tea.WindowSizeMsg{Width: width, Height: height})
	return s
}

func (s *screen) state() top.Model { return s.model.(top.Model) }

func (s *screen) send(msg tea.Msg) {
	s.t.Helper()
	var cmd tea.Cmd
	s.model, cmd = s.model.Update(msg)
	s.run(cmd)
}

func (s *screen) run(cmd tea.Cmd) {
	s.t.Helper()
	if cmd == nil {
		return
	}
	switch msg := cmd().(type) {
	case nil, tea.QuitMsg:
	case tea.BatchMsg:
		for _, c := range msg {
			s.run(c)
		}
	default:
		s.send(msg)
	}
}

// press presses keys, by the names that bubbletea has for them.
func (s *screen) press(keys ...string) {
	s.t.Helper()
	named := map[string]tea.KeyPressMsg{
		"enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "up": {Code: tea.KeyUp},
		"down": {Code: tea.KeyDown},
		"left": {Code: tea.KeyLeft}, "right": {Code: tea.KeyRight}, "tab": {Code: tea.KeyTab},
		"home": {Code: tea.KeyHome},
		"end":  {Code: tea.KeyEnd}, "pgdown": {Code: tea.KeyPgDown}, "pgup": {Code: tea.KeyPgUp},
		"space": {Code: tea.KeySpace, Text: " "}, "backspace": {Code: tea.KeyBackspace},
		"ctrl+u": {Code: 'u', Mod: tea.ModCtrl}, "shift+tab": {Code: tea.KeyTab, Mod: tea.ModShift},
	}
	for _, key := range keys {
		k, ok := named[key]
		if !ok {
			k = tea.KeyPressMsg{Code: []rune(key)[0], Text: key}
		}
		s.send(k)
	}
}

// write types a text.
func (s *screen) write(text string) {
	s.t.Helper()
	for _, r := range text {
		s.press(string(r))
	}
}

// refresh shows the newest frame of the broker, and what is loaded besides.
func (s *screen) refresh() {
	s.t.Helper()
	s.now = s.now.Add(2 * time.Second)
	s.send(s.frame())
}

// frame returns the newest frame of the broker.
func (s *screen) frame() tea.Msg {
	s.t.Helper()
	broker := s.broker
	if s.session != "" {
		broker = broker.In(s.session)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for frame, err := range broker.FollowOverview(ctx, &pb.WatchOverviewRequest{Once: true}) {
		if err != nil {
			s.t.Fatal(err)
		}
		return top.FrameMsg(frame)
	}
	s.t.Fatal("no frame")
	return nil
}

const patience = 5 * time.Minute
