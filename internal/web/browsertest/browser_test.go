package browsertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"go.uber.org/goleak"
)

// chromium is the one browser of the test binary. The first test that needs it starts it.
var chromium struct {
	once sync.Once
	ctx  context.Context
	stop context.CancelFunc
	err  error
}

// errNone means that the machine has no Chromium.
var errNone = errors.New("chromium is not in PATH (Debian: apt-get install chromium)")

func TestMain(m *testing.M) {
	code := m.Run()
	if chromium.stop != nil {
		chromium.stop()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// browser returns the context of the browser. Without Chromium it skips the test; with CI=true it fails it.
func browser(t testing.TB) context.Context {
	t.Helper()
	chromium.once.Do(launch)
	switch {
	case errors.Is(chromium.err, errNone) && os.Getenv("CI") != "true":
		t.Skip(chromium.err)
	case chromium.err != nil:
		t.Fatal(chromium.err)
	}
	return chromium.ctx
}

// launch starts the browser with an empty profile. It has no sandbox, which root and many containers
// cannot use: it shows the pages of these tests alone.
func launch() {
	program, err := exec.LookPath("chromium")
	if err != nil {
		chromium.err = errNone
		return
	}
	home, err := os.MkdirTemp("", "chromium") // beside its profile, it writes to a few folders of the user
	if err != nil {
		chromium.err = err
		return
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Env("HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home, "XDG_DATA_HOME="+home),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, closeBrowser := chromedp.NewContext(allocator)
	chromium.stop = func() {
		closeBrowser()
		end()
		_ = os.RemoveAll(home)
	}
	chromium.ctx, chromium.err = ctx, chromedp.Do(ctx)
}
