package messagesrpc

import (
	"strings"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/content"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
)

func FuzzAsk(f *testing.F) {
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := decode(t, wire, &pb.AskRequest{})
		d, wait, err := question(builtin, r)
		if refused(t, err) {
			return
		}
		if r.Wait == nil && wait != 30*time.Second || r.Wait != nil && wait != r.Wait.AsDuration() {
			t.Fatalf("wait %v is taken as %v", r.Wait, wait)
		}
		wantDraft(t, &d, r.Message)
		if !d.Response || !r.Message.RequiresResponse {
			t.Fatalf("a question that requires no response: %v", r.Message)
		}
	})
}

func FuzzReply(f *testing.F) {
	to := anID
	f.Fuzz(func(t *testing.T, wire []byte, correlation string) {
		r := decode(t, wire, &pb.ReplyRequest{})
		a, err := reply(builtin, r)
		if refused(t, err) {
			return
		}
		if r.Id != "" {
			wantRef(t, a.To, r.Id)
		}
		m := r.Message
		if a.Ack != r.Ack || m.Target != nil || m.Reach != 0 || m.ThreadId != "" || m.InReplyTo != "" {
			t.Fatalf("accepted: %v", r)
		}
		if strings.ToValidUTF8(correlation, "") != correlation || m.CorrelationId != "" {
			correlation = ""
		}
		// What is filled in becomes part of the message.
		d := a.Draft
		added := content.Added{Agent: "lead", ReplyTo: to.String(), Correlation: correlation}
		d.Content = append(d.Content[:len(d.Content):len(d.Content)], added.Marshal()...)
		d.Target = mail.Target{Kind: mail.ToAgent, Name: "lead"}
		m.Target, m.InReplyTo = &pb.Target{To: &pb.Target_Agent{Agent: "lead"}}, to.String()
		if correlation != "" {
			m.CorrelationId = correlation
		}
		if len(d.Content) <= content.Max {
			d.ReplyTo, _ = msgid.ParseRef(to.String())
			wantDraft(t, &d, m)
		}
		if got := content.Text(d.Content, content.Subject); got != m.Subject {
			t.Fatalf("the subject is read as %q: %v", got, m)
		}
	})
}

func FuzzResendMessage(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.ResendMessageRequest{}, unary(s.messages.ResendMessage), func(t *testing.T, r *pb.ResendMessageRequest) {
		wantIDs(t, []string{r.Id}, false)
		wantMailboxes(t, r.Mailboxes)
	})
}
