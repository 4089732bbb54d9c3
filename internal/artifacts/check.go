package artifacts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Checks returns what inspects the tables and the contents, each for one snapshot. A check returns one line per
// problem, at most so many. With hashes, the checks also read every content and compare its hash, which takes seconds
// per GiB: it is for a store without other users. Nil contents are missing.
func Checks(contents Contents, most int, hashes bool) []func(q store.Querier) ([]string, error) {
	checks := []func(store.Querier) ([]string, error){
		func(q store.Querier) ([]string, error) { return checkContents(q, contents, most, hashes) },
	}
	name := func(name string) string { return fmt.Sprintf("artifact %q", name) }
	return append(checks, work.Checks(most, invariants[:], name)...)
}

// checkContents checks that every content is there.
func checkContents(q store.Querier, contents Contents, most int, hashes bool) (problems []string, err error) {
	if contents != nil {
		problems, err = contents.Check(q, most)
	}
	if err != nil || contents != nil && !hashes {
		return problems, err
	}
	sizes := map[string]int64{}
	if err := EachContent(q, func(sum string, size int64) { sizes[sum] = size }); err != nil || len(sizes) == 0 {
		return problems, err
	}
	if contents == nil {
		return []string{"the folder of artifacts is missing, and with it the contents of all artifacts"}, nil
	}
	for sum, size := range sizes {
		if len(problems) == most {
			break
		}
		if what := checkHash(contents, sum, size); what != "" {
			problems = append(problems, fmt.Sprintf("the content %s of artifacts %s", sum, what))
		}
	}
	return problems, nil
}

// EachContent passes every content that a session has, with its size in bytes, to a function.
func EachContent(q store.Querier, fn func(sum string, size int64)) error {
	rows := q.Query(allContents)
	defer rows.Close()
	for rows.Next() {
		var sum string
		var size int64
		if err := rows.Scan(&sum, &size); err != nil {
			return err
		}
		fn(sum, size)
	}
	return rows.Err()
}

// checkHash says what is wrong with a content that has the right size.
func checkHash(contents Contents, sum string, size int64) string {
	content, err := contents.Open(context.Background(), sum)
	if errors.Is(err, fs.ErrNotExist) {
		return "" // Check has said so
	}
	if err != nil {
		return "cannot be read: " + err.Error()
	}
	defer func() { _ = content.Close() }() // it is only read
	if content.Size() != size {
		return "" // Check has said so
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(content, 0, size)); err != nil {
		return "cannot be read: " + err.Error()
	}
	if found := hex.EncodeToString(h.Sum(nil)); found != sum {
		return "is damaged: it has the hash " + found
	}
	return ""
}

const allContents = `
SELECT sha256, max(size) FROM artifact_contents GROUP BY sha256`

var invariants = [...]work.Invariant{
	{Says: "a version has no content", Query: `
		SELECT v.name FROM artifact_versions v LEFT JOIN artifact_contents c ON c.session = v.session AND c.sha256 = v.sha256
		WHERE c.sha256 IS NULL OR c.size <> v.size`},
	{Says: "it has more versions of a content than the content's row counts", Query: `
		SELECT min(v.name) FROM artifact_versions v JOIN artifact_contents c ON c.session = v.session AND c.sha256 = v.sha256
		GROUP BY v.session, v.sha256 HAVING count(*) > max(c.versions)`},
	{Says: "it has not exactly one newest version, which is its highest", Query: `
		SELECT name FROM artifact_versions GROUP BY session, name
		HAVING count(*) FILTER (WHERE replaced_at IS NULL) <> 1
			OR max(version) <> max(CASE WHEN replaced_at IS NULL THEN version END)`},
	{Says: "it has versions, and no row of its own or a lower last number", Query: `
		SELECT v.name FROM artifact_versions v LEFT JOIN artifacts a ON a.session = v.session AND a.name = v.name
		WHERE a.name IS NULL OR a.deleted_at IS NOT NULL OR a.last < v.version`},
}
