package app

import (
	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/admission"
	"brokerd/internal/archive"
	"brokerd/internal/backlog"
	"brokerd/internal/broker"
	"brokerd/internal/catalog"
	"brokerd/internal/channels"
	"brokerd/internal/conversations"
	"brokerd/internal/deadletters"
	"brokerd/internal/inbox"
	"brokerd/internal/messagesrpc"
	"brokerd/internal/notices"
	"brokerd/internal/offers"
	"brokerd/internal/router"
)

// newMessages makes the core of messages and the packages around it.
func newMessages(p *parts, clock clockwork.Clock, log *zap.Logger) {
	p.broker = broker.New(p.store, p.events, p.directory, clock, log.Named("broker"))
	p.backlog = backlog.New(p.store, p.directory, p.broker, clock, log.Named("broker"))
	p.router = router.New(p.store, p.events, p.directory, p.broker, p.backlog, clock)
	p.catalog = catalog.New(p.store, p.events, p.directory)
	if p.messagetrace != nil {
		p.broker.UseTracer(p.messagetrace)
		p.router.UseTracer(p.messagetrace)
	}
	p.admission = admission.New(p.store, p.events, p.directory, p.broker, clock, log.Named("broker"))
	p.router.UseAdmission(p.admission, p.admission, p.admission)
	p.broker.UseGates(p.admission.Gates, p.admission.Gates)
	p.broker.OnMailboxesRemoved(p.admission.MailboxesRemoved)
	p.broker.Audiences.OnChange(p.admission.AudienceChanged)
	p.notices = notices.New(p.directory, p.broker, p.router)
	p.events.OnAnnounced(p.notices.Announce)
	p.offers = offers.New(p.store, p.events, p.broker)
	p.broker.UseOffers(p.offers)
	p.conversations = conversations.New(p.store, p.events, p.directory, p.notices, p.broker, p.router, p.backlog, clock,
		log.Named("conversations"))
	p.broker.UseQuestions(p.conversations)
	p.router.UseQuestions(p.conversations)
	p.broker.OnDue(p.conversations)
	p.broker.OnDue(p.offers)
	p.channels = channels.New(p.store, p.events, p.directory, p.catalog, p.broker)
	p.deadletters = deadletters.New(p.store, p.directory, p.broker, p.router, clock, log.Named("deadletters"))
	p.inbox = inbox.New(p.store, p.events, p.directory, p.broker, p.admission.Gates, clock)
	p.archive = archive.New(p.broker, p.router.Producers, p.events, messagesrpc.AppendRecord)
}
