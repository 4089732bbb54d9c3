package web_test

import (
	"compress/gzip"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/apptest"
	"brokerd/internal/rpc"
	"brokerd/internal/web"
)

// pageFiles returns the files of the page by their path in internal/web.
func pageFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir("ui", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files[filepath.ToSlash(name)], err = os.ReadFile(name)
		return err
	})
	apptest.NoError(t, err)
	return files
}

func TestPage_ServesEachFileWithoutACredential(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	c := overTCP(t, b, "")
	kinds := map[string]string{".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
	paths := map[string]string{"/": "ui/index.html", "/login": "ui/index.html"}
	files := pageFiles(t)
	for name := range files {
		if name != "ui/index.html" {
			paths["/"+name] = name
		}
	}
	for at, name := range paths {
		a := c.must("GET", at, "")
		if essence(name, a.text) != essence(name, string(files[name])) {
			t.Errorf("%s: the content differs from that of %s", at, name)
		}
		if kind := a.header.Get("Content-Type"); kinds[path.Ext(name)] == "" ||
			!strings.HasPrefix(kind, kinds[path.Ext(name)]) {
			t.Errorf("%s: Content-Type %q", at, kind)
		}
		again := c.do("GET", at, "", "If-None-Match", a.header.Get("ETag"))
		if again.status != http.StatusNotModified || again.text != "" {
			t.Errorf("%s with its entity tag: status %d, %d bytes", at, again.status, len(again.text))
		}
	}
	if a := c.do("GET", "/ui/lib/none.js", ""); a.status != http.StatusNotFound {
		t.Errorf("an unknown file: status %d", a.status)
	}
	if a := c.do("POST", "/", ""); a.status != http.StatusMethodNotAllowed {
		t.Errorf("a POST of the page: status %d", a.status)
	}
}

func TestPage_EachFileHasTheSecurityHeaders(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	c := overTCP(t, b, "")
	for _, at := range []string{"/", "/login", "/ui/app.js", "/ui/style.css", "/ui/vendor/preact.js"} {
		a := c.must("GET", at, "")
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
				"img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; " +
				"require-trusted-types-for 'script'; trusted-types 'none'",
			"X-Content-Type-Options": "nosniff",
			"Referrer-Policy":        "no-referrer",
			"Cache-Control":          "no-cache",
		} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s: %s: %s; want %s", at, name, got, want)
			}
		}
		if got := a.header.Values("Set-Cookie"); got != nil {
			t.Errorf("%s sets a cookie: %v", at, got)
		}
	}
	if a := c.do("GET", "/", "", "Host", "attacker.example"); a.status != http.StatusMisdirectedRequest {
		t.Errorf("a foreign host: status %d", a.status)
	}
}

func TestPage_HasNoInlineScriptOrStyle(t *testing.T) {
	t.Parallel()
	forbidden := regexp.MustCompile(`\son\w+=|\sstyle="|<style|<script[^>]*>[^<]|javascript:`)
	for name, content := range pageFiles(t) {
		if path.Ext(name) == ".html" {
			if found := forbidden.Find(content); found != nil {
				t.Errorf("%s has %q", name, found)
			}
		}
	}
}

func TestPage_TheScriptsUseNoMarkupFromText(t *testing.T) {
	t.Parallel()
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|` +
		`document\.write|\beval\(|new Function`)
	for name, content := range pageFiles(t) {
		if path.Ext(name) != ".js" || path.Dir(name) == "ui/vendor" {
			continue
		}
		if found := forbidden.Find(content); found != nil {
			t.Errorf("%s has %q", name, found)
		}
	}
}

var (
	imports = regexp.MustCompile(`(?s)\b(?:import|export)\s*\{([^}]*)\}\s*from\s*'([^']+)'`)
	exports = regexp.MustCompile(`(?m)^export (?:async )?(?:function|class|const|let) (\w+)`)
	listed  = regexp.MustCompile(`(?s)\bexport\s*\{([^}]*)\}`)
)

// names returns the names of a list such as "a, b as c"; exported are the names after "as".
func names(list string, exported bool) (all []string) {
	for _, item := range strings.Split(list, ",") {
		words := strings.Fields(item)
		switch {
		case len(words) == 0:
		case exported:
			all = append(all, words[len(words)-1])
		default:
			all = append(all, words[0])
		}
	}
	return all
}

func TestPage_EachImportResolves(t *testing.T) {
	t.Parallel()
	files := pageFiles(t)
	exported := map[string]map[string]bool{}
	for name, content := range files {
		exported[name] = map[string]bool{}
		for _, found := range exports.FindAllSubmatch(content, -1) {
			exported[name][string(found[1])] = true
		}
		for _, found := range listed.FindAllSubmatch(content, -1) {
			for _, one := range names(string(found[1]), true) {
				exported[name][one] = true
			}
		}
	}
	for name, content := range files {
		if path.Ext(name) != ".js" || path.Dir(name) == "ui/vendor" {
			continue
		}
		for _, found := range imports.FindAllSubmatch(content, -1) {
			from := path.Join(path.Dir(name), string(found[2]))
			if files[from] == nil {
				t.Errorf("%s imports %s, which does not exist", name, found[2])
				continue
			}
			for _, one := range names(string(found[1]), false) {
				if !exported[from][one] {
					t.Errorf("%s imports %s from %s, which does not export it", name, one, from)
				}
			}
		}
	}
}

var styleComment = regexp.MustCompile(`/\*[^*]*\*/`)

// essence returns a file without what the server may leave out: spaces and comments.
func essence(name, text string) string {
	if path.Ext(name) != ".js" && path.Ext(name) != ".css" {
		return text
	}
	if path.Ext(name) == ".css" {
		text = styleComment.ReplaceAllString(text, "")
	}
	var essential []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "// ") {
			essential = append(essential, strings.Fields(line)...)
		}
	}
	return strings.Join(essential, "")
}

// The server leaves out each line that begins with "// ", and the spaces at the beginning of a line. In a
// template, both are text. HTML does without the spaces.
func TestPage_TheServerLeavesOutNoTextOfAScript(t *testing.T) {
	t.Parallel()
	for name, content := range pageFiles(t) {
		if path.Ext(name) != ".js" || strings.Contains(name, "vendor/") {
			continue
		}
		var templates templates
		number := 0
		for line := range strings.Lines(string(content)) {
			number++
			inside := len(templates) > 0 && !templates[len(templates)-1].code
			comment := strings.HasPrefix(strings.TrimSpace(line), "// ")
			indented := strings.TrimLeft(line, " \t\r\n") != line
			if inside && (comment || indented && !templates[len(templates)-1].html) {
				t.Errorf("%s:%d: the server leaves out a part of a text: %q", name, number, line)
			}
			if inside || !comment {
				templates.read(line)
			}
		}
		if len(templates) > 0 {
			t.Errorf("%s: %d templates are open at its end", name, len(templates))
		}
	}
}

// A template is a literal of JavaScript that is open.
type template struct {
	html   bool
	code   bool // an expression of it is open
	braces int  // of that expression
}

// templates are those that are open, the innermost at the end.
type templates []template

// read reads a line of a script.
func (t *templates) read(line string) {
	var quote byte
	for i := 0; i < len(line); i++ {
		var top *template
		if len(*t) > 0 {
			top = &(*t)[len(*t)-1]
		}
		text := top != nil && !top.code
		switch c := line[i]; {
		case c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '`' && text:
			*t = (*t)[:len(*t)-1]
		case c == '`':
			*t = append(*t, template{html: strings.HasSuffix(line[:i], "html")})
		case text:
			if strings.HasPrefix(line[i:], "${") {
				top.code, top.braces = true, 0
			}
		case c == '\'' || c == '"':
			quote = c
		case top != nil && c == '{':
			top.braces++
		case top != nil && c == '}':
			top.braces--
			top.code = top.braces > 0
		}
	}
}

// The sum of what a browser receives for the page.
func TestPage_TheScriptsAndStylesAreSmall(t *testing.T) {
	t.Parallel()
	c := overTCP(t, apptest.Start(t), "")
	size, files := 0, pageFiles(t)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) != ".js" && path.Ext(name) != ".css" {
			continue
		}
		a := c.must("GET", "/"+name, "", "Accept-Encoding", "br, gzip;q=0.8")
		size += len(a.text)
		if got := a.header.Get("Content-Encoding") + " " + a.header.Get("Vary"); got != "gzip Accept-Encoding" {
			t.Errorf("%s: Content-Encoding and Vary: %s", name, got)
		}
		r, err := gzip.NewReader(strings.NewReader(a.text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if text, err := io.ReadAll(r); err != nil || essence(name, string(text)) != essence(name, string(files[name])) {
			t.Errorf("%s: gzip has another content than the file (%v)", name, err)
		}
		plain := c.must("GET", "/"+name, "", "Accept-Encoding", "gzip;q=0, identity")
		if plain.header.Get("Content-Encoding") != "" || plain.header.Get("ETag") == a.header.Get("ETag") {
			t.Errorf("%s: without gzip, the headers are %v", name, plain.header)
		}
	}
	const limit = 60 << 10
	t.Logf("all scripts and styles: %d bytes with gzip, %d %% of the limit", size, 100*size/limit)
	if size >= limit {
		t.Errorf("all scripts and styles have %d bytes with gzip; the limit is %d", size, limit)
	}
}

// A deadlined answer records whether it has a deadline whenever a handler writes to it.
type deadlined struct {
	*httptest.ResponseRecorder
	deadline time.Time
	untimed  bool
}

func (d *deadlined) SetReadDeadline(time.Time) error { return nil }

func (d *deadlined) SetWriteDeadline(t time.Time) error {
	d.deadline = t
	return nil
}

func (d *deadlined) Write(p []byte) (int, error) {
	d.untimed = d.untimed || d.deadline.IsZero()
	return d.ResponseRecorder.Write(p)
}

// These answers need no credential, so a client without one must not hold a connection by not reading.
func TestPage_AClientMustReadPublicAnswersInTime(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	s := web.New(web.Options{
		RPC: rpc.NewServer(rpc.Options{Clock: clock, Log: zap.NewNop()}), Version: "test", Clock: clock, Log: zap.NewNop(),
	})
	for _, path := range []string{"/", "/login", "/ui/app.js", "/v1/openapi.json", "/none"} {
		d := &deadlined{ResponseRecorder: httptest.NewRecorder()}
		s.ServeHTTP(d, httptest.NewRequest(http.MethodGet, "http://localhost"+path, http.NoBody))
		if d.Body.Len() == 0 || d.untimed || !d.deadline.IsZero() {
			t.Errorf("%s: %d bytes, without a deadline: %v, with one afterwards: %v", path, d.Body.Len(), d.untimed, d.deadline)
		}
	}
}
