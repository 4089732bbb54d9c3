package top_test

import (
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/cmd/brokerctl/top"
	pb "brokerd/gen/brokerd/v1"
)

// evil is a text with each kind of character that changes a terminal, or the order of the text on it.
const evil = hostile + "\u061c\u2067\u2028\u2029\u0085"

// infect puts the evil text into every text of a message and of the messages in it. A list without
// items gets one.
func infect[M proto.Message](m M) M {
	infectMessage(m.ProtoReflect(), 0)
	return m
}

func infectMessage(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.IsMap():
			if f.MapKey().Kind() == protoreflect.StringKind && f.MapValue().Kind() == protoreflect.StringKind {
				m.Mutable(f).Map().Set(protoreflect.ValueOfString(evil).MapKey(), protoreflect.ValueOfString(evil))
			}
		case f.Kind() == protoreflect.StringKind && f.IsList():
			m.Mutable(f).List().Append(protoreflect.ValueOfString(evil))
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(evil))
		case f.Message() == nil || depth == 4:
		case f.IsList():
			list := m.Mutable(f).List()
			if list.Len() == 0 {
				list.AppendMutable()
			}
			for i := range list.Len() {
				infectMessage(list.Get(i).Message(), depth+1)
			}
		case f.ContainingOneof() == nil || m.Has(f):
			infectMessage(m.Mutable(f).Message(), depth+1)
		}
	}
}

// wantText wants a screen without characters that control a terminal or turn the text on it.
func (s *screen) wantText(where string) {
	s.t.Helper()
	shown := s.state().Screen()
	at := strings.IndexFunc(shown, func(r rune) bool {
		return r != '\n' && (unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp))
	})
	if at >= 0 {
		s.t.Fatalf("%s: %+q in\n%q", where, []rune(shown[at:])[0], shown)
	}
}

func TestScreen_EveryTextOfAgentsIsText(t *testing.T) {
	data := map[int]any{
		3: []*pb.Event{infect(&pb.Event{Revision: 17})},
		4: []*pb.ThreadSummary{infect(&pb.ThreadSummary{})},
		5: []*pb.InboxItem{infect(&pb.InboxItem{Message: &pb.Message{}, Delivery: &pb.Delivery{}})},
		6: top.Held(infect(&pb.ListLocksResponse{}), []*pb.GetTokenResponse{infect(&pb.GetTokenResponse{})}),
		7: top.Work([]*pb.Task{infect(&pb.Task{})}, []*pb.Vote{infect(&pb.Vote{State: pb.VoteState_VOTE_STATE_OPEN})},
			[]*pb.Decision{infect(&pb.Decision{})}, []*pb.Handoff{infect(&pb.Handoff{})},
			[]*pb.Blocker{infect(&pb.Blocker{})}),
	}
	for _, view := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		s := newScreen(t, 160, 60, false, false, nil)
		s.send(top.FrameMsg(infect(frame())))
		for at, loaded := range data {
			s.send(top.LoadedMsg(at, loaded, nil))
		}
		s.press(view)
		if !s.shows("owned") {
			t.Errorf("view %s shows no row:\n%s", view, s.state().Screen())
		}
		s.wantText("view " + view)
		for range 8 {
			for _, action := range []string{"1", "2", "3", "4", "5"} {
				s.press("a", action)
				s.wantText("a dialog of view " + view)
				s.press("esc", "esc", "esc")
			}
			s.press("enter")
			s.wantText("an opened row of view " + view)
			s.press("esc", "down")
		}
		s.press("/")
		s.write(evil)
		s.wantText("a filter of view " + view)
	}
}

func TestPanel_EveryTextOfAgentsIsText(t *testing.T) {
	for name, m := range map[string]proto.Message{
		"agent": infect(&pb.GetAgentResponse{}), "message": infect(&pb.GetMessageResponse{}),
		"event": infect(&pb.Event{}), "lock": infect(&pb.Lock{}), "token": infect(&pb.GetTokenResponse{}),
		"task": infect(&pb.GetTaskResponse{}), "vote": infect(&pb.GetVoteResponse{}),
		"decision": infect(&pb.GetDecisionResponse{}), "handoff": infect(&pb.GetHandoffResponse{}),
		"blocker": infect(&pb.GetBlockerResponse{}),
	} {
		s := full(t, 160, 60, false, false)
		s.press("2", "down", "enter")
		s.send(top.OpenedMsg("builder-1", evil, m))
		s.wants("owned")
		for range 20 {
			s.wantText("the panel of a " + name)
			s.press("pgdown")
		}
	}
}
