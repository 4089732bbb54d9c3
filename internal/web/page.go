package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"
)

// pageFiles are the files of the dashboard, a page of plain ES modules.
//
//go:embed ui/icon.svg ui/index.html ui/style.css ui/app.js ui/views.js ui/lib ui/vendor ui/views
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

// A pageFile is one file of the dashboard.
type pageFile struct {
	content []byte
	kind    string // its media type
	tag     string // its entity tag
}

// handlePage adds the routes of the dashboard. The page at /login exchanges the secret of its link.
func (s *Server) handlePage() {
	err := fs.WalkDir(pageFiles, "ui", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := pageFiles.ReadFile(name)
		sum := sha256.Sum256(content)
		f := &pageFile{content: content, kind: pageTypes[path.Ext(name)], tag: `"` + hex.EncodeToString(sum[:8]) + `"`}
		if name == "ui/index.html" {
			s.mux.Handle("GET /{$}", f)
			s.mux.Handle("GET /login", f)
			return err
		}
		s.mux.Handle("GET /"+name, f)
		return err
	})
	if err != nil { // only if the program was built without a file
		panic(err)
	}
}

// ServeHTTP implements http.Handler.
func (f *pageFile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range pageHeaders {
		w.Header().Set(name, value)
	}
	w.Header().Set("Content-Type", f.kind)
	w.Header().Set("ETag", f.tag)
	timed(w, func() { http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content)) })
}
