package msgid_test

import (
	"testing"
	"time"

	"brokerd/internal/msgid"
)

func FuzzNewID(f *testing.F) {
	f.Fuzz(func(t *testing.T, millis, revision int64) {
		at, revision := time.UnixMilli(millis&(1<<48-1)), revision&(1<<48-1)
		id := msgid.New(at, revision)
		if id[6]>>4 != 7 || id[8]>>6 != 2 {
			t.Fatalf("%v is no UUID of version 7", id)
		}
		ref, ok := msgid.ParseRef(id.String())
		if ok != (revision > 0) || ok && (ref.ID != id || ref.Revision != revision || ref.Claim != 0) {
			t.Fatalf("%v of revision %d is read as %+v, %v", id, revision, ref, ok)
		}
		if later := msgid.New(at.Add(time.Millisecond), revision); at.UnixMilli() < 1<<48-1 && later.String() <= id.String() {
			t.Fatalf("%v does not sort after %v", later, id)
		}
	})
}
