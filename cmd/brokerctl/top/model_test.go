package top_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"google.golang.org/protobuf/proto"

	"brokerd/cmd/brokerctl/top"
	pb "brokerd/gen/brokerd/v1"
)

// next is a frame at the next revision, after a change.
func next(s *screen, f *pb.WatchOverviewResponse, change func(f *pb.WatchOverviewResponse)) *pb.WatchOverviewResponse {
	s.t.Helper()
	f = proto.CloneOf(f)
	f.Revision++
	change(f)
	s.send(top.FrameMsg(f))
	return f
}

func (s *screen) shows(text string) bool { return strings.Contains(s.state().Screen(), text) }

func (s *screen) wants(text string) {
	s.t.Helper()
	if !s.shows(text) {
		s.t.Errorf("no %q in\n%s", text, s.state().Screen())
	}
}

func TestModel_LoadsWhatIsVisibleAfterAChangeAtMostOnceASecond(t *testing.T) {
	s := newScreen(t, 80, 24, false, false, nil)
	same := func(*pb.WatchOverviewResponse) {}
	f := next(s, frame(), same)
	wantCalls := func(what string, n int) {
		t.Helper()
		if s.calls != n {
			t.Errorf("%s: %d calls, want %d", what, s.calls, n)
		}
	}
	wantCalls("the frame has all of the first view", 0)
	s.press("8")
	wantCalls("a view becomes visible", 1)
	f = next(s, f, same)
	wantCalls("while it loads", 1)
	s.send(top.LoadedMsg(7, nil, nil))
	f = next(s, f, same)
	wantCalls("within a second", 1)
	s.now = s.now.Add(time.Second)
	s.send(top.FrameMsg(f))
	wantCalls("a second later", 2)
	s.send(top.LoadedMsg(7, nil, nil))
	s.now = s.now.Add(time.Minute)
	s.send(top.FrameMsg(f))
	wantCalls("without a change", 2)
	s.send(top.LostMsg(errors.New("gone")))
	s.press("7")
	wantCalls("without a connection", 2)
	next(s, f, same)
	wantCalls("with a connection again", 3)
}

func TestModel_TheSelectedRowStaysSelected(t *testing.T) {
	s := full(t, 120, 40, false, false)
	s.press("2", "down") // builder-1
	f := next(s, frame(), func(f *pb.WatchOverviewResponse) {
		f.Agents = append([]*pb.OverviewAgent{{Name: "architect"}, {Name: "auditor"}}, f.Agents...)
	})
	s.wants("> builder-1")
	next(s, f, func(f *pb.WatchOverviewResponse) { f.Agents = f.Agents[:1] })
	s.wants("> architect")
}

func TestModel_AHeldTimelineStaysAsItIs(t *testing.T) {
	s := full(t, 120, 40, false, false)
	s.press("4", "space")
	f := next(s, frame(), func(f *pb.WatchOverviewResponse) {
		f.Events = append([]*pb.OverviewEvent{{Revision: 4800, Type: "lock.granted"}}, f.Events...)
	})
	if s.shows("lock.granted") || !s.shows("held") {
		t.Errorf("not held:\n%s", s.state().Screen())
	}
	s.press("space")
	s.wants("lock.granted")
	s.press("space")
	next(s, f, func(f *pb.WatchOverviewResponse) { f.Events[0].Type = "lock.released" })
	s.press("esc")
	s.wants("lock.released")
}

func TestModel_ABrokenConnectionKeepsTheLastFrameAndResumes(t *testing.T) {
	s := newScreen(t, 120, 40, false, false, nil)
	s.wants("connecting")
	s.send(top.LostMsg(errors.New("gone")))
	s.wants("NOT CONNECTED, trying again")
	f := next(s, frame(), func(*pb.WatchOverviewResponse) {})
	s.wants(" live")
	s.send(top.LostMsg(errors.New("gone")))
	s.now = s.now.Add(time.Minute)
	s.wants("NOT CONNECTED, frame of 1m ago")
	s.wants("mailbox role:painter")
	next(s, f, func(f *pb.WatchOverviewResponse) { f.Closed = true })
	if s.shows("NOT CONNECTED") {
		t.Errorf("it is connected:\n%s", s.state().Screen())
	}
	s.wants(" closed")
}

func TestModel_TheTimelineHasEventsOfTheFrameAndLoadedOnesOnce(t *testing.T) {
	s := full(t, 120, 60, false, false)
	s.send(top.LoadedMsg(3, []*pb.Event{{Revision: 4711, Type: "message.sent"},
		{Revision: 17, Type: "agent.registered"}}, nil))
	s.press("4", "end")
	s.wants("agent.registered")
	if n := strings.Count(s.state().Screen(), "4711"); n != 1 {
		t.Errorf("event 4711 is shown %d times:\n%s", n, s.state().Screen())
	}
}

func TestModel_AFilterFindsARowBelowAnother(t *testing.T) {
	s := full(t, 120, 40, false, false)
	s.press("8", "/")
	s.send(tea.PasteMsg{Content: "TEST the\n"})
	s.press("backspace", "backspace", "enter")
	s.wants("└ test")
	if s.shows("lint") {
		t.Errorf("not filtered:\n%s", s.state().Screen())
	}
	s.press("esc")
	s.wants("lint")
}

func TestModel_KeysOfTheHelpQuitAndSwitch(t *testing.T) {
	s := full(t, 120, 40, false, false)
	s.press("?")
	s.wants("choose a view")
	s.press("q") // closes the help only
	s.press("right", "tab", "left", "shift+tab", "left")
	s.wants("[8 Work]")
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: 'c', Mod: tea.ModCtrl}} {
		_, cmd := s.model.Update(key)
		if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("%v does not quit", key)
		}
	}
}
