// Package browsertest tests the dashboard in a real Chromium, which chromedp drives, against a
// daemon in the test's own process. It has tests only. Without Chromium they are skipped; with
// CI=true they fail.
//
// All tests share one browser. Each has a broker, and a tab with a store of its own. A test waits
// for conditions in the page, and checks over gRPC what a button has done. It asserts no bound on
// time: measurements run with `make dashboard-load`, pictures with `make screenshots`.
package browsertest
