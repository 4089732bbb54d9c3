package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"
)

// pageFiles are the files of the dashboard, a page of plain ES modules.
//
//go:embed ui/icon.svg ui/index.html ui/style.css ui/app.js ui/lib ui/vendor ui/views
var pageFiles embed.FS

// pageTypes are the media types of the files by their extension.
var pageTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".svg":  "image/svg+xml",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
}

// pageHeaders go with every file. The browser loads only files of this origin, runs no inline script,
// refuses strings as markup, and shows the page in no frame.
var pageHeaders = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
		"img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; " +
		"require-trusted-types-for 'script'; trusted-types 'none'",
	"Referrer-Policy": "no-referrer",
	"Cache-Control":   "no-cache", // the browser asks with the entity tag whether a file has changed
}

// A tenth of the page is for its readers only: the indentation, the empty lines and the lines of comment
// of scripts, and the comments and the spaces between the parts of a style.
var (
	margins = regexp.MustCompile(`(?m)^\s*// .*\n|^\s+`)
	spaces  = regexp.MustCompile(`/\*[^*]*\*/|\s*([{};,>])\s*|(:)\s+`)
)

// A pageFile is one file of the dashboard as the server sends it.
type pageFile struct {
	kind           string // its media type
	plain, zipped  []byte
	tag, zippedTag string // the entity tags of both
}

// handlePage adds the routes of the dashboard. The page at /login exchanges the secret of its link.
func (s *Server) handlePage() {
	err := fs.WalkDir(pageFiles, "ui", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		file := sync.OnceValue(func() *pageFile { return newPageFile(name) })
		serve := func(w http.ResponseWriter, r *http.Request) { file().ServeHTTP(w, r) }
		if name == "ui/index.html" {
			s.mux.HandleFunc("GET /{$}", serve)
			s.mux.HandleFunc("GET /login", serve)
			return nil
		}
		s.mux.HandleFunc("GET /"+name, serve)
		return nil
	})
	if err != nil { // only if the program was built without a file
		panic(err)
	}
}

// newPageFile reads and compresses an embedded file.
func newPageFile(name string) *pageFile {
	content, err := pageFiles.ReadFile(name)
	if err != nil { // the name is from the embedded folder
		panic(err)
	}
	switch path.Ext(name) {
	case ".js":
		content = margins.ReplaceAll(content, nil)
	case ".css":
		content = spaces.ReplaceAll(content, []byte("$1$2"))
	}
	var zipped bytes.Buffer
	w, _ := gzip.NewWriterLevel(&zipped, gzip.BestCompression) // a valid level
	_, _ = w.Write(content)                                    // a buffer accepts every write
	_ = w.Close()
	sum := sha256.Sum256(content)
	tag := hex.EncodeToString(sum[:8])
	return &pageFile{
		kind: pageTypes[path.Ext(name)], plain: content, zipped: zipped.Bytes(),
		tag: `"` + tag + `"`, zippedTag: `"` + tag + `-gzip"`,
	}
}

// ServeHTTP implements http.Handler.
func (f *pageFile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range pageHeaders {
		w.Header().Set(name, value)
	}
	w.Header().Set("Content-Type", f.kind)
	w.Header().Set("Vary", "Accept-Encoding")
	content, tag := f.plain, f.tag
	if acceptsGzip(r.Header) {
		content, tag = f.zipped, f.zippedTag
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.Header().Set("ETag", tag)
	timed(w, func() { http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content)) })
}

// acceptsGzip reports whether a client reads gzip: it names it, without the weight 0.
func acceptsGzip(h http.Header) bool {
	for _, coding := range strings.Split(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, weight, _ := strings.Cut(strings.ReplaceAll(coding, " ", ""), ";")
		if strings.EqualFold(name, "gzip") {
			return weight == "" || strings.Trim(weight, "qQ=0.") != ""
		}
	}
	return false
}
