package vendortest

import (
	"context"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fakemodel"
)

// A session that is idle reads its mail at once: some programs also before their first turn.
func TestScreen_MailWakesAnIdleSession(t *testing.T) {
	for i := range vendors {
		v := &vendors[i]
		if v.idle == pb.OfferWay_OFFER_WAY_UNSPECIFIED {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			r := newRun(t, v)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			idle := r.busy()
			s := r.open()
			if !v.early {
				r.prompt(s, "hello ", "PROMPT-first")
				idle()
			}
			for _, mail := range []string{"MAIL-the-first", "MAIL-the-second"} {
				sent, idle := time.Now(), r.busy()
				id := r.send(mail)
				if _, err := r.model.Await(ctx, func(q *fakemodel.Request) bool { return q.Has(mail) }); err != nil {
					t.Fatal(mail, err)
				}
				t.Logf("%s: in a request after %v", mail, time.Since(sent).Round(time.Millisecond))
				r.accepted(id)
				if o := r.delivery(id).GetOffers(); len(o) != 1 || o[0].GetWay() != v.idle {
					t.Errorf("%s: %v", mail, o)
				}
				idle()
			}
			r.truthful()
		})
	}
}
