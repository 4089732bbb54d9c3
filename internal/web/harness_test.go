package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A browser makes HTTP requests to a broker. Its headers go with every request.
type browser struct {
	t       *testing.T
	base    string
	client  *http.Client
	headers http.Header
}

// onSocket returns a client of the broker's Unix socket that names an agent; "" names none.
func onSocket(t *testing.T, b *apptest.Broker, agent string) *browser {
	t.Helper()
	path := strings.TrimPrefix(b.Socket(), "unix://")
	return newBrowser(t, "http://brokerd", agent, func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	})
}

// overTCP returns a client of the broker's TCP address with a credential; "" is none.
func overTCP(t *testing.T, b *apptest.Broker, secret string) *browser {
	t.Helper()
	c := newBrowser(t, "http://"+b.TCP(), "", nil)
	if secret != "" {
		c.headers.Set("Authorization", "Bearer "+secret)
	}
	return c
}

func newBrowser(
	t *testing.T, base, agent string, dial func(context.Context, string, string) (net.Conn, error),
) *browser {
	t.Helper()
	transport := &http.Transport{DialContext: dial, ExpectContinueTimeout: apptest.Patience}
	t.Cleanup(transport.CloseIdleConnections)
	c := &browser{t: t, base: base, client: &http.Client{Transport: transport}, headers: http.Header{}}
	if agent != "" {
		c.headers.Set("Brokerd-Agent", agent)
	}
	return c
}

// An answer is what a request returned.
type answer struct {
	status int
	header http.Header
	text   string
	object map[string]any // of a JSON object
}

// request makes a request. headers are pairs that replace those of the client.
func (c *browser) request(method, path, body string, headers ...string) *http.Response {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	c.t.Cleanup(cancel)
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, content)
	apptest.NoError(c.t, err)
	r.Header = c.headers.Clone()
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	out, err := c.client.Do(r)
	apptest.NoError(c.t, err)
	c.t.Cleanup(func() { _ = out.Body.Close() })
	return out
}

// do makes a request and reads its answer.
func (c *browser) do(method, path, body string, headers ...string) answer {
	c.t.Helper()
	out := c.request(method, path, body, headers...)
	text, err := io.ReadAll(out.Body)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	a := answer{status: out.StatusCode, header: out.Header, text: string(text)}
	if out.Header.Get("Content-Type") == "application/json" {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&a.object); err != nil {
			c.t.Fatalf("%s %s: %v: %s", method, path, err, text)
		}
	}
	return a
}

// must makes a request that succeeds.
func (c *browser) must(method, path, body string, headers ...string) answer {
	c.t.Helper()
	a := c.do(method, path, body, headers...)
	if a.status < 200 || a.status > 299 {
		c.t.Fatalf("%s %s %s: %d %s", method, path, body, a.status, a.text)
	}
	return a
}

// at returns a value of an object: at(o, "error.reason"). A number names an element of a list.
func at(value any, path string) any {
	for _, name := range strings.Split(path, ".") {
		switch v := value.(type) {
		case map[string]any:
			value = v[name]
		case []any:
			i := int(name[0] - '0')
			if i >= len(v) {
				return nil
			}
			value = v[i]
		default:
			return nil
		}
	}
	return value
}

// reason returns the reason of an error.
func (a answer) reason() string {
	text, _ := at(a.object, "error.reason").(string)
	return text
}

// number returns an integer of an answer.
func (a answer) number(path string) string {
	n, _ := at(a.object, path).(json.Number)
	return n.String()
}

// words returns a text of an answer.
func (a answer) words(path string) string {
	text, _ := at(a.object, path).(string)
	return text
}

// apiServices returns the services of the API.
func apiServices() (all []protoreflect.ServiceDescriptor) {
	protoregistry.GlobalFiles.RangeFilesByPackage("brokerd.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			all = append(all, file.Services().Get(i))
		}
		return true
	})
	return all
}
