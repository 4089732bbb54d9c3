package messagesrpc

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/broker"
	"brokerd/internal/fault"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/msgtype"
	"brokerd/internal/rules"
)

// What the API promises to accept, written out once more.
var (
	anEvent  = regexp.MustCompile(`\A[A-Za-z][A-Za-z0-9._-]{0,127}\z`)
	aName    = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\z`)
	aPattern = regexp.MustCompile(`\A[A-Za-z0-9*?][A-Za-z0-9._:*?-]{0,127}\z`)
)

// anID is the id of the message of revision 7.
var anID = func() msgid.ID {
	ref, _ := msgid.ParseRef("00000000-0001-7000-8000-000000000007")
	return ref.ID
}()

// builtin are the types of a session that registers none.
var builtin = msgtype.NewSet(nil)

func FuzzSendMessages(f *testing.F) {
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := decode(t, wire, &pb.SendMessagesRequest{})
		all, err := drafts(builtin, r.Messages)
		if refused(t, err) {
			return
		}
		wantCount(t, "drafts", len(all), 1, 1000)
		for i := range all {
			wantDraft(t, &all[i], r.Messages[i])
		}
	})
}

func FuzzSend(f *testing.F) {
	f.Fuzz(func(t *testing.T, wire []byte, first bool) {
		r := decode(t, wire, &pb.SendRequest{})
		producer := ""
		if refused(t, checkBatch(r, len(r.Messages), first, &producer)) {
			return
		}
		wantCount(t, "messages", len(r.Messages), 1, 1000)
		if producer != "" && (!aName.MatchString(producer) || r.FirstNumber < 1) || producer == "" && r.FirstNumber != 0 {
			t.Fatalf("producer %q with first number %d", producer, r.FirstNumber)
		}
		for i, d := range streamDrafts(builtin, r.Messages) {
			if !refused(t, d.Fault) {
				wantDraft(t, &d, r.Messages[i])
			}
		}
	})
}

func FuzzClaim(f *testing.F) {
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := decode(t, wire, &pb.ClaimRequest{})
		if w, err := openWish(builtin, r); !refused(t, err) {
			o := r.Open
			wantNames(t, "types", o.Types, 100)
			wantCount(t, "lowest priority", w.Priority, 0, 10)
			wantCount(t, "max in flight", w.Max, 1, 1000)
			wantCount(t, "max bytes", w.MaxBytes, 1, 64<<20)
			wantDuration(t, "claim_for", w.ClaimFor, o.ClaimFor, time.Second, 12*time.Hour, 30*time.Second)
			wantDuration(t, "max_total", w.MaxTotal, o.MaxTotal, time.Second, 12*time.Hour, 30*time.Minute)
			wantMailboxes(t, w.Mailboxes)
			if w.Consumer != "" && !aName.MatchString(w.Consumer) {
				t.Fatalf("consumer %q", w.Consumer)
			}
		}
		items, err := frameSettlements(r)
		if refused(t, err) {
			return
		}
		wantCount(t, "settlements", len(items), 0, 1000)
		for i := range items {
			if refused(t, items[i].Fault) {
				continue
			}
			wantSettlement(t, &items[i], true)
			wantCount(t, "claim number", items[i].Ref.Claim, 1, math.MaxInt32)
		}
	})
}

func FuzzNack(f *testing.F) {
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := decode(t, wire, &pb.NackMessagesRequest{})
		items, err := settlements("nacks", r.Nacks, nackSettlement)
		if refused(t, err) {
			return
		}
		wantCount(t, "nacks", len(items), 1, 1000)
		for i := range items {
			wantSettlement(t, &items[i], len(items) > 1)
		}
	})
}

func FuzzExtend(f *testing.F) {
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := decode(t, wire, &pb.ExtendClaimsRequest{})
		items, err := settlements("extensions", r.Extensions, extendSettlement)
		if refused(t, err) {
			return
		}
		wantCount(t, "extensions", len(items), 1, 1000)
		for i := range items {
			wantSettlement(t, &items[i], len(items) > 1)
		}
	})
}

func FuzzParseRef(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		ref, ok := msgid.ParseRef(s)
		if ok {
			wantRef(t, ref, s)
		}
	})
}

// decode reads what a client may have sent. Bytes that are no message, and requests that the rules refuse, never get
// to a service.
func decode[M proto.Message](t *testing.T, wire []byte, m M) M {
	t.Helper()
	var set rules.Set
	if proto.Unmarshal(wire, m) != nil || set.Message(m.ProtoReflect().Descriptor()).Check(m) != nil {
		t.Skip()
	}
	return m
}

// refused reports whether a request was refused; that must be the caller's fault, with a reason.
func refused(t *testing.T, err error) bool {
	t.Helper()
	if err == nil {
		return false
	}
	if kind := fault.KindOf(err); kind != fault.Invalid && kind != fault.Exhausted || err.Error() == "" {
		t.Fatalf("refused with kind %v: %v", kind, err)
	}
	if !utf8.ValidString(err.Error()) {
		t.Fatalf("the refusal is no text: %q", err)
	}
	return true
}

// wantDraft checks that a draft keeps the limits and that its content is the message.
func wantDraft(t *testing.T, d *mail.Draft, m *pb.Message) {
	t.Helper()
	wantCount(t, "priority", d.Priority, 1, 10)
	wantCount(t, "max attempts", d.MaxAttempts, 0, 100)
	wantCount(t, "subject", len(d.Subject), 0, 512)
	wantCount(t, "body", len(m.Body), 0, 256<<10)
	wantCount(t, "payload", len(m.Payload), 0, 256<<10)
	wantCount(t, "content", len(d.Content), 0, 1<<20)
	wantCount(t, "labels", len(m.Labels), 0, 64)
	wantNames(t, "type", []string{d.Type}, 1)
	for _, line := range []string{d.Subject, d.Thread, d.Correlation, d.Task, d.OrderingKey} {
		if strings.ContainsFunc(line, unicode.IsControl) || !utf8.ValidString(line) {
			t.Fatalf("%q is no line of text", line)
		}
	}
	for _, id := range []string{d.Thread, d.Correlation, d.Task, d.OrderingKey} {
		wantCount(t, "id", len(id), 0, 128)
	}
	if m.ResponseDeadline != nil && !d.Response {
		t.Fatalf("a deadline for no response: %v", m)
	}
	wantDuration(t, "resend_after", d.ResendAfter, m.ResendAfter, time.Second, 30*24*time.Hour, 0)
	wantDuration(t, "ttl", d.TTL, m.Ttl, time.Millisecond, 365*24*time.Hour, 0)
	switch name := aName.MatchString(d.Target.Name); d.Target.Kind {
	case mail.ToEveryone:
	case mail.ToPattern:
		if !aPattern.MatchString(d.Target.Name) {
			t.Fatalf("target %+v", d.Target)
		}
	default:
		if !name {
			t.Fatalf("target %+v", d.Target)
		}
	}
	if d.One && d.Target.Kind != mail.ToRole && d.Target.Kind != mail.ToChannel {
		t.Fatalf("one of %+v", d.Target)
	}
	if mail.IsDirective(d.Type) && (d.One || d.Priority != 10 || d.OrderingKey != "" || !d.NotBefore.IsZero()) {
		t.Fatalf("the directive waits for others: %+v", d)
	}
	if m.InReplyTo != "" {
		wantRef(t, d.ReplyTo, m.InReplyTo)
	}
	var kept pb.Message
	if err := proto.Unmarshal(d.Content, &kept); err != nil || !proto.Equal(&kept, m) {
		t.Fatalf("the content is another message: %v\n%v\n%v", err, &kept, m)
	}
	wantCarried(t, d, &kept)
}

// wantCarried checks that a recipient gets what the sender gave, with the stamps of the broker.
func wantCarried(t *testing.T, d *mail.Draft, given *pb.Message) {
	t.Helper()
	sent := mail.Message{
		Revision: 7, ID: anID, Sender: "a", CreatedAt: time.UnixMilli(1), Content: d.Content, Thread: d.Thread,
	}
	wire, err := proto.Marshal(wire(&sent))
	if err != nil {
		t.Fatal(err)
	}
	var got pb.Message
	if err := proto.Unmarshal(wire, &got); err != nil {
		t.Fatal(err)
	}
	if got.Id != sent.ID.String() || got.Revision != 7 || got.Sender != "a" || got.ThreadId == "" {
		t.Fatalf("stamps are lost: %v", &got)
	}
	got.Id, got.Revision, got.Sender, got.CreatedAt, got.ThreadId = "", 0, "", nil, given.ThreadId
	if !proto.Equal(&got, given) {
		t.Fatalf("the recipient gets another message:\n%v\n%v", &got, given)
	}
}

func wantSettlement(t *testing.T, s *broker.Settlement, named bool) {
	t.Helper()
	if s.Ref.Text != "" || named {
		wantRef(t, s.Ref, s.Ref.Text)
	}
	wantCount(t, "error", len(s.Error), 0, 4<<10)
	if s.Delay != nil && (*s.Delay < 0 || *s.Delay > 12*time.Hour) {
		t.Fatalf("delay %v", *s.Delay)
	}
	if s.For != 0 && (s.For < time.Second || s.For > 12*time.Hour) {
		t.Fatalf("for %v", s.For)
	}
}

// wantRef checks that a name was read as it is written.
func wantRef(t *testing.T, ref msgid.Ref, s string) {
	t.Helper()
	written := strconv.FormatInt(ref.Revision, 10)
	switch {
	case ref.ID != msgid.ID{}:
		written = ref.ID.String()
	case ref.Claim != 0:
		written = msgid.ClaimID(ref.Revision, ref.Claim)
	}
	if ref.Text != s || ref.Revision < 1 || ref.Claim < 0 || !strings.EqualFold(written, s) {
		t.Fatalf("%q is read as %+v", s, ref)
	}
}

func wantNames(t *testing.T, what string, names []string, most int) {
	t.Helper()
	wantCount(t, what, len(names), 0, most)
	for _, n := range names {
		if !aName.MatchString(n) {
			t.Fatalf("%s: %q is no name", what, n)
		}
	}
}

// wantMailboxes checks that mailboxes are read as they are written.
func wantMailboxes(t *testing.T, mailboxes []string) {
	t.Helper()
	for _, m := range mailboxes {
		if ref := mail.ParseMailbox(m); !aName.MatchString(ref.Name) || ref.String() != m {
			t.Fatalf("mailbox %q is read as %+v", m, ref)
		}
	}
}

func wantCount(t *testing.T, what string, n, least, most int) {
	t.Helper()
	if n < least || n > most {
		t.Fatalf("%s: %d is not within %d and %d", what, n, least, most)
	}
}

func wantDuration(t *testing.T, what string, got time.Duration, given *durationpb.Duration, least, most, absent time.Duration) {
	t.Helper()
	switch {
	case given == nil && got == absent:
	case given != nil && got == given.AsDuration() && least <= got && got <= most:
	default:
		t.Fatalf("%s: %v is taken as %v", what, given, got)
	}
}
