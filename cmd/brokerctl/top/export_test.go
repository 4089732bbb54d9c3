package top

import (
	"slices"

	tea "charm.land/bubbletea/v2"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
)

// What tests send to a Model, and read from it.

func FrameMsg(f *pb.WatchOverviewResponse) tea.Msg { return frameMsg{f} }

func LostMsg(err error) tea.Msg { return lostMsg{err} }

func TickMsg() tea.Msg { return tickMsg{} }

func LoadedMsg(view int, data any, err error) tea.Msg { return loadedMsg{view, data, err} }

func OpenedMsg(key, title string, m proto.Message) tea.Msg {
	return openedMsg{key: key, sections: []section{{title: title, message: m}}}
}

func Held(locks *pb.ListLocksResponse, tokens []*pb.GetTokenResponse) any {
	return heldThings{locks, tokens}
}

func Work(tasks []*pb.Task, votes []*pb.Vote, decisions []*pb.Decision, handoffs []*pb.Handoff,
	blockers []*pb.Blocker) any {
	return workList{tasks, votes, decisions, handoffs, blockers}
}

func SessionsMsg(sessions ...*pb.Session) tea.Msg { return sessionsMsg{sessions, nil} }

// Offered returns the labels of the open menu.
func (m Model) Offered() []string {
	var labels []string
	for _, a := range m.dialog.actions {
		labels = append(labels, a.label)
	}
	return labels
}

// Fields returns the names of the fields of the open dialog, and whether each is a choice.
func (m Model) Fields() (names []string, choices map[string][]string) {
	choices = map[string][]string{}
	for _, f := range m.dialog.action().fields {
		names = append(names, f.name)
		if len(f.options) > 0 {
			choices[f.name] = slices.Clone(f.options)
		}
	}
	return names, choices
}

// Asks reports whether the dialog waits for the confirmation, and what it says of the count.
func (m Model) Asks() (bool, string) { return m.dialog.stage == confirming, m.dialog.text }

// Open reports whether a dialog is open, and why its action has failed.
func (m Model) Open() (bool, string) { return m.dialog.stage != closed, m.dialog.failure }

// Details returns the titles of the sections of the opened item.
func (m Model) Details() []string {
	var titles []string
	for _, s := range m.panel.sections {
		titles = append(titles, s.title)
	}
	return titles
}

func (m Model) Value(field string) string { return m.dialog.values[field] }

func (m Model) Notice() string { return m.notice }

// A Call is what a command does.
type Call = call

// Caller makes commands of calls.
var Caller = caller
