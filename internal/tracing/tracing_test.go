package tracing_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"

	"brokerd/internal/apptest"
	"brokerd/internal/tracing"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse_ReadsWhatW3CAllows(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		parent:                               parent,
		parent[:53] + "00":                   parent[:53] + "00",
		parent[:53] + "03":                   parent, // further flags
		"cc" + parent[2:]:                    parent, // a later version
		"cc" + parent[2:] + "-x":             parent,
		"":                                   "",
		parent[:54]:                          "",
		parent + "-x":                        "",
		"cc" + parent[2:] + "x":              "",
		"ff" + parent[2:]:                    "",
		"0g" + parent[2:]:                    "",
		strings.ToUpper(parent):              "",
		strings.ReplaceAll(parent, "-", "_"): "",
		"00-" + strings.Repeat("0", 32) + parent[35:]:   "",
		parent[:36] + strings.Repeat("0", 16) + "-01":   "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad-01\n": "",
	} {
		c, ok := tracing.Parse(text)
		if got := c.String(); got != want || ok != (want != "") {
			t.Errorf("Parse(%q) is %q, %t instead of %q", text, got, ok, want)
		}
	}
}

func TestContext_DerivedIdsFollowFromTraceAndName(t *testing.T) {
	t.Parallel()
	c, _ := tracing.Parse(parent)
	other, _ := tracing.Parse(strings.Replace(parent, "0af7", "0af8", 1))
	a := c.Derive("1.1@2")
	if a != c.Derive("1.1@2") || a.Trace != c.Trace || a.Sampled != c.Sampled {
		t.Error("a name has two ids")
	}
	if a.Span == c.Derive("1.2@2").Span || a.Span == other.Derive("1.1@2").Span || a.Span == c.Span {
		t.Error("an id has two names")
	}
}

// tracer returns a tracer that exports to an endpoint. The test stops it.
func tracer(t *testing.T, endpoint string, sample float64) *tracing.Tracer {
	t.Helper()
	tr, err := tracing.New(tracing.Options{Endpoint: endpoint, Sample: sample, Clock: clockwork.NewRealClock(), Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func stop(t *testing.T, tr *tracing.Tracer) {
	t.Helper()
	if err := tr.Stop(); err != nil {
		t.Error(err)
	}
}

func TestTracer_NewTracesAreSampledAndOthersFollowTheirParent(t *testing.T) {
	t.Parallel()
	const n = 10_000
	for share, want := range map[float64][2]int{0: {0, 0}, 0.25: {n / 5, n * 3 / 10}, 1: {n, n}} {
		tr := tracer(t, "127.0.0.1:1", share)
		sampled := 0
		for range n {
			if tr.Child(tracing.Context{}).Sampled {
				sampled++
			}
		}
		if sampled < want[0] || sampled > want[1] {
			t.Errorf("of %d traces, %d are recorded; the share is %g", n, sampled, share)
		}
		c, _ := tracing.Parse(parent)
		if child := tr.Child(c); child.Trace != c.Trace || child.Span == c.Span || !child.Sampled {
			t.Errorf("the child of %v is %v", c, child)
		}
		stop(t, tr)
	}
}

func TestTracer_CountsTheSpansThatACollectorThatHangsDoesNotTake(t *testing.T) {
	t.Parallel()
	exporting := make(chan struct{}, 1)
	address := apptest.ServeTraces(t, func(ctx context.Context, _ *collector.ExportTraceServiceRequest) error {
		select {
		case exporting <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return ctx.Err()
	})
	tr := tracer(t, address, 1)
	span := tracing.Span{Context: tr.Child(tracing.Context{}), Name: "s"}
	tr.Record(span)
	<-exporting
	const more = 20_000
	for range more {
		tr.Record(span)
	}
	queued := more - tr.Dropped()
	if queued <= 0 || queued >= more {
		t.Errorf("the queue has %d spans", queued)
	}
	stop(t, tr)
	if got := tr.Dropped(); got != more+1 {
		t.Errorf("of %d spans, %d were dropped", more+1, got)
	}
	stop(t, tr)
}

func TestTracer_ExportsWhatIsQueuedWhenItStops(t *testing.T) {
	t.Parallel()
	spans := apptest.NewCollector(t)
	tr, err := tracing.New(tracing.Options{
		Endpoint: spans.Address(), Sample: 1, StopTime: apptest.Patience, Clock: clockwork.NewFakeClock(), Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		tr.Record(tracing.Span{Context: tr.Child(tracing.Context{}), Name: "s"})
	}
	stop(t, tr)
	if got := len(spans.Await(t, 2000)); got != 2000 || tr.Dropped() != 0 {
		t.Errorf("the collector has %d spans; %d were dropped", got, tr.Dropped())
	}
}

// TestTracer_ExportsOverTLS is the only test here that loads the system's certificate authorities,
// which Go reads once per process.
func TestTracer_ExportsOverTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", file)
	var once sync.Once
	exported := make(chan struct{})
	security := credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	address := apptest.ServeTraces(t, func(context.Context, *collector.ExportTraceServiceRequest) error {
		once.Do(func() { close(exported) })
		return nil
	}, grpc.Creds(security))
	tr := tracer(t, "https://"+address, 1)
	tr.Record(tracing.Span{Context: tr.Child(tracing.Context{}), Name: "s"})
	select {
	case <-exported:
	case <-time.After(apptest.Patience):
		t.Error("the collector has no span")
	}
	stop(t, tr)
}
