package jsonline_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"brokerd/internal/jsonline"
)

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "plain", "a \"b\" \\ <c> & d", "\x00\x1f\b\f\n\r\t\x7f", "äöü 漢字 \u2028\u2029 \u2027 🙂", "\xff\xe2\x80", "\xe2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := jsonline.Text([]byte("x"), s); string(got) != "x"+string(want) {
			t.Errorf("%q is written as %s, want %s", s, got, want)
		}
	})
}

func FuzzRaw(f *testing.F) {
	for _, s := range []string{``, `1`, `{"a":[1,2]}`, "{ \"a b\" :\t[1 ,\r\n 2.50] }", `"\u2028 <"`, `{"n": 9007199254740993}`, "\"\u2028\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var want bytes.Buffer
		switch {
		case s == "":
			want.WriteString("null")
		case !json.Valid([]byte(s)):
			t.Skip()
		default:
			if err := json.Compact(&want, []byte(s)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := jsonline.Raw([]byte("x"), s)
		if err != nil || string(got) != "x"+want.String() {
			t.Errorf("%q is written as %s (%v), want %s", s, got, err, want.String())
		}
	})
}

func TestTime_IsWrittenAsEncodingJSONDoes(t *testing.T) {
	for _, at := range []time.Time{
		time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), time.Date(2026, 1, 2, 3, 4, 5, 120_000_000, time.FixedZone("", 3600)), time.Unix(1, 1),
	} {
		want, err := json.Marshal(at.UTC())
		if err != nil {
			t.Fatal(err)
		}
		if got := jsonline.Time(nil, at); string(got) != string(want) {
			t.Errorf("%v is written as %s, want %s", at, got, want)
		}
	}
}
