package importer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// pages are the artifacts of an import while it writes them.
type pages struct {
	history, skipped *page
}

// A page is a file with one JSON object per line.
type page struct {
	file *os.File
	out  *bufio.Writer
	rows int
}

func newPages(dir string) (*pages, error) {
	history, err := newPage(filepath.Join(dir, "history.jsonl"))
	if err != nil {
		return nil, err
	}
	skipped, err := newPage(filepath.Join(dir, "skipped.jsonl"))
	if err != nil {
		return nil, errors.Join(err, history.file.Close())
	}
	return &pages{history, skipped}, nil
}

func newPage(path string) (*page, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &page{file: f, out: bufio.NewWriter(f)}, nil
}

func (p *pages) close() error { return errors.Join(p.history.file.Close(), p.skipped.file.Close()) }

// add writes a line.
func (p *page) add(r row) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	p.rows++
	_, err = p.out.Write(append(text, '\n'))
	return err
}

// upload uploads the pages that have lines. A page that the broker has already gets no new version.
func (p *pages) upload(ctx context.Context, broker *client.Client, file string, dry bool) ([]Artifact, error) {
	uploaded := []Artifact{} // a list, also in JSON, if there is none
	folder := "import/" + artifactName(file) + "/"
	for _, part := range []struct {
		name, description string
		page              *page
	}{
		{"history.jsonl", "messages that were finished or expired before the import", p.history},
		{"skipped.jsonl", "rows that could not be imported, with the reason", p.skipped},
	} {
		if part.page.rows == 0 {
			continue
		}
		a := Artifact{Name: folder + part.name, Rows: part.page.rows}
		if !dry {
			if err := part.page.out.Flush(); err != nil {
				return uploaded, err
			}
			header := &pb.ArtifactHeader{Name: a.Name, MediaType: "application/jsonl", Description: part.description}
			out, err := broker.UploadArtifact(ctx, header, part.page.file, nil)
			if err != nil {
				return uploaded, err
			}
			a.Version = out.GetArtifact().GetVersion()
		}
		uploaded = append(uploaded, a)
	}
	return uploaded, nil
}

// artifactName returns the name of a file, without its ending, as a segment of an artifact's name.
func artifactName(file string) string {
	s := strings.Map(func(r rune) rune {
		if r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_.", r)) {
			return r
		}
		return '_'
	}, strings.TrimSuffix(file, filepath.Ext(file)))
	if s = strings.Trim(clip(s, 200), "."); s == "" {
		return "database"
	}
	return s
}
