package web_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"brokerd/internal/apptest"
)

func TestHTTP_ItemsAreCountedBeforeTheyAreBuilt(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	c := onSocket(t, b, "lead")
	for name, row := range map[string]struct {
		body   string
		status int
		reason string
		text   string
	}{
		"empty messages": {`{"messages":[` + strings.Repeat("{},", 1_600_000) + `{}]}`, 400, "INVALID_ARGUMENT",
			"messages: has more than 1000 items: send fewer at a time"},
		"files of one message":  {`{"messages":[{"files":[` + strings.Repeat("{},", 100_000) + `{}]}]}`, 413, "TOO_MANY_ITEMS", "100000"},
		"labels of one message": {`{"messages":[{"labels":{` + labels(60_000) + `}}]}`, 413, "TOO_MANY_ITEMS", "100000"},
	} {
		a := c.do("POST", "/v1/messages", row.body)
		if a.status != row.status || a.reason() != row.reason || !strings.Contains(a.text, row.text) {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
	}
}

// labels returns the JSON of n labels.
func labels(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"k%d":""`, i))
	}
	return strings.Join(all, ",")
}

func TestHTTP_UnfinishedBodiesOfACredentialAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	answers := make(chan int, 20)
	head := "POST /v1/call/MessageService/ListMessages HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + b.Credential() +
		"\r\nContent-Length: 5242880\r\n\r\n{"
	for range 20 {
		conn, err := net.Dial("tcp", b.TCP())
		apptest.NoError(t, err)
		defer func() { _ = conn.Close() }()
		apptest.NoError(t, apptest.Err(io.WriteString(conn, head)))
		go func() {
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err == nil {
				_ = answer.Body.Close()
				answers <- answer.StatusCode
			}
		}()
	}
	for range 8 { // the others have 60 of 64 MiB
		if status := <-answers; status != http.StatusTooManyRequests {
			t.Errorf("answered with %d", status)
		}
	}
	select {
	case status := <-answers:
		t.Errorf("one more is answered with %d", status)
	default:
	}
	overTCP(t, b, b.Credential()).must("GET", "/v1/status", "")
}

func TestHTTP_ALengthBesideATransferEncodingEndsTheConnection(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	const (
		chunked = "Transfer-Encoding: chunked\r\n"
		length  = "Content-Length: 5\r\n"
		padding = "X-Padding: "
	)
	head := "POST /v1/call/AdminService/GetStatus HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " +
		b.Credential() + "\r\n"
	type request struct {
		headers string
		closes  bool
	}
	requests := map[string]request{
		"both":            {chunked + length, true},
		"the other order": {"content-LENGTH: 5\r\n" + chunked, true},
		"chunks alone":    {chunked, false},
	}
	for at := range len("Content-Length:") { // net/http reads 4 KiB at a time: the line is in two reads
		rest := 4<<10 - len(head+padding+"\r\n"+chunked) - at
		requests[fmt.Sprintf("split at %d", at)] = request{
			padding + strings.Repeat("x", rest) + "\r\n" + chunked + length, true,
		}
	}
	for name, r := range requests {
		conn := raw(t, b)
		text := head + r.headers + "\r\n2\r\n{}\r\n0\r\n\r\n"
		step := 1 // a byte at a time
		if strings.HasPrefix(name, "split") {
			step = len(text)
		}
		for i := 0; i < len(text); i += step {
			apptest.NoError(t, apptest.Err(io.WriteString(conn, text[i:i+step])))
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		apptest.NoError(t, err)
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK || answer.Close != r.closes {
			t.Errorf("%s: %d, closes %v", name, answer.StatusCode, answer.Close)
		}
	}
}
