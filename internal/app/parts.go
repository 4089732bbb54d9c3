package app

import (
	"brokerd/internal/admission"
	"brokerd/internal/agents"
	"brokerd/internal/archive"
	"brokerd/internal/artifacts"
	"brokerd/internal/auth"
	"brokerd/internal/backlog"
	"brokerd/internal/backup"
	"brokerd/internal/blockers"
	"brokerd/internal/broker"
	"brokerd/internal/catalog"
	"brokerd/internal/channels"
	"brokerd/internal/conversations"
	"brokerd/internal/deadletters"
	"brokerd/internal/decisions"
	"brokerd/internal/diagnose"
	"brokerd/internal/directory"
	"brokerd/internal/diskguard"
	"brokerd/internal/drain"
	"brokerd/internal/events"
	"brokerd/internal/handoffs"
	"brokerd/internal/inbox"
	"brokerd/internal/locks"
	"brokerd/internal/messagetrace"
	"brokerd/internal/notices"
	"brokerd/internal/offers"
	"brokerd/internal/overview"
	"brokerd/internal/retention"
	"brokerd/internal/router"
	"brokerd/internal/rpc"
	"brokerd/internal/sessions"
	"brokerd/internal/state"
	"brokerd/internal/store"
	"brokerd/internal/tasks"
	"brokerd/internal/votes"
	"brokerd/internal/work"
)

// parts are the parts of a daemon. Each has the name of its package.
type parts struct {
	admission     *admission.Control
	agents        *agents.Registry
	archive       *archive.Messages
	artifacts     *artifacts.Service
	auth          *auth.Registry
	backlog       *backlog.Chores
	backup        *backup.Maker
	blockers      *blockers.Service
	broker        *broker.Broker
	catalog       *catalog.Service
	channels      *channels.Registry
	conversations *conversations.Registry
	deadletters   *deadletters.Queue
	decisions     *decisions.Service
	diagnose      *diagnose.Examiner
	directory     *directory.Directory
	diskguard     *diskguard.Gauge
	drain         *drain.Switch
	events        *events.Log
	handoffs      *handoffs.Service
	inbox         *inbox.Reader
	locks         *locks.Table
	messagetrace  *messagetrace.Recorder // nil = traces are not exported
	notices       *notices.Sender
	offers        *offers.Offers
	overview      *overview.Hub
	retention     *retention.Keeper
	router        *router.Router
	rpc           *rpc.Server
	sessions      *sessions.Registry
	state         *state.Keys
	store         *store.Store
	tasks         *tasks.Service
	votes         *votes.Service
	jobs          work.Features // tasks and the kinds of joint work
	work          []workKind    // the kinds of joint work that work.Table keeps
}
