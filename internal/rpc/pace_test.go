package rpc

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jonboulle/clockwork"
)

// prefaced is what a client sends before its first frame.
const prefaced = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

const (
	emptyData    = "\x00\x00\x00\x00\x00\x00\x00\x00\x01"
	emptyHeaders = "\x00\x00\x00\x01\x04\x00\x00\x00\x01"
	windowUpdate = "\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x01"
	aPing        = "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"
	aReset       = "\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08"
)

// pacedPipe returns a paced connection that reads a text, and ends after it.
func pacedPipe(t *testing.T, text string) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	conn, err := pace(server, clockwork.NewRealClock())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		_, _ = io.WriteString(client, text) // the test may close the connection
		_ = client.Close()
	}()
	return conn
}

func TestPace_HoldsBackFramesWithoutACall(t *testing.T) {
	t.Parallel()
	for name, flood := range map[string]string{
		"window updates": strings.Repeat(windowUpdate, 3*framesPerSecond),
		"pings":          strings.Repeat(aPing, 3*framesPerSecond/otherFrame),
		"resets":         strings.Repeat(emptyHeaders+aReset, 3*framesPerSecond/otherFrame),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				text, err := io.ReadAll(pacedPipe(t, prefaced+flood))
				if err != nil || string(text) != prefaced+flood {
					t.Errorf("%d of %d bytes arrive: %v", len(text), len(prefaced+flood), err)
				}
				if took := time.Since(began); took != 3*time.Second-frameBurst {
					t.Errorf("they take %v", took)
				}
			})
		})
	}
}

func TestPace_LetsCallsPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		calls := strings.Repeat(emptyHeaders+emptyData, 10*framesPerSecond)
		if n, err := io.Copy(io.Discard, pacedPipe(t, prefaced+calls)); err != nil || int(n) != len(prefaced+calls) {
			t.Errorf("%d bytes arrive: %v", n, err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("they take %v", took)
		}
	})
}

func TestPace_EndsTheWaitOfAConnectionThatIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := pacedPipe(t, prefaced+strings.Repeat(aPing, framesPerSecond))
		read := make(chan error)
		go func() {
			_, err := io.Copy(io.Discard, conn)
			read <- err
		}()
		synctest.Wait() // the connection waits
		began := time.Now()
		_ = conn.Close()
		if err := <-read; !errors.Is(err, net.ErrClosed) || time.Since(began) != 0 {
			t.Errorf("it ends with %v after %v", err, time.Since(began))
		}
	})
}

func TestPace_FindsFramesHoweverTheirBytesArrive(t *testing.T) {
	t.Parallel()
	text := prefaced + windowUpdate + emptyHeaders + aPing + emptyData + aReset + windowUpdate
	const limited = 2 + 2*otherFrame
	for size := 1; size <= len(text); size++ {
		f := frames{skip: len(preface)}
		n := 0
		for rest := text; rest != ""; rest = rest[min(size, len(rest)):] {
			n += f.count([]byte(rest[:min(size, len(rest))]))
		}
		if n != limited {
			t.Errorf("in pieces of %d bytes they count as %d, not %d", size, n, limited)
		}
	}
}
