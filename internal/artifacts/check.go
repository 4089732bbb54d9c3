package artifacts

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Checks returns what inspects the tables and the folder of contents below a data folder, each for
// one snapshot. A check returns one line per problem, at most so many. With hashes, the checks also
// read every content and compare its hash, which takes seconds per GiB.
func Checks(dir string, most int, hashes bool) []func(q store.Querier) ([]string, error) {
	checks := []func(store.Querier) ([]string, error){
		func(q store.Querier) ([]string, error) {
			return checkFiles(q, filepath.Join(dir, Folder), most, hashes)
		},
	}
	name := func(name string) string { return fmt.Sprintf("artifact %q", name) }
	return append(checks, work.Checks(most, invariants[:], name)...)
}

// checkFiles checks that every content has its file.
func checkFiles(q store.Querier, dir string, most int, hashes bool) (problems []string, err error) {
	sizes := map[string]int64{}
	if err := EachContent(q, func(sum string, size int64) { sizes[sum] = size }); err != nil || len(sizes) == 0 {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return []string{fmt.Sprintf("the folder %s is missing, and with it the contents of all artifacts", dir)}, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // it is only read
	for sum, size := range sizes {
		if len(problems) == most {
			break
		}
		if what := checkFile(root, sum, size, hashes); what != "" {
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

// checkFile says what is wrong with the file of a content.
func checkFile(root *os.Root, sum string, size int64, hashes bool) string {
	file, err := root.Open(sum)
	if errors.Is(err, fs.ErrNotExist) {
		return "has no file"
	}
	if err != nil {
		return "cannot be read: " + err.Error()
	}
	defer func() { _ = file.Close() }() // it is only read
	info, err := file.Stat()
	switch {
	case err != nil:
		return "cannot be read: " + err.Error()
	case info.Size() != size:
		return fmt.Sprintf("has a file of %d bytes instead of %d", info.Size(), size)
	case !hashes:
		return ""
	}
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "cannot be read: " + err.Error()
	}
	if found := hex.EncodeToString(h.Sum(nil)); found != sum {
		return "is damaged: its file has the hash " + found
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
