// Package artifacts keeps files that agents share: names with numbered, immutable versions, whose
// contents are files in the data folder, or rows of the database.
//
//	header ──► draft ──► size and hash checked, sync ──► rename to its hash ──► commit
//	   │         │
//	   │         └── broken stream, error, shutdown, idle client: the draft is removed
//	   └── the session has this hash already ──────────────────────────────────► commit
//
// # Contents
//
// A content is one file, named by its SHA-256, for all sessions together. The row is committed after
// the file is on disk, and the file is removed after its last row: for every committed row there is a
// file. A crash leaves at most files without rows, which Start removes. Publishing a file with its
// row, and removing a file without rows, exclude each other, so that a file never disappears under
// an upload of the same content. All access goes through an os.Root: no name leaves the folder.
//
// On a database server, a content is a number of rows with 256 KiB each, its chunks. They are written beside the
// writer (store.Store.Aside), and are on the disk with the commit of the version that has the content. A download
// reads one chunk at a time and holds no snapshot between two, so the chunks of a content stay until its downloads
// have ended.
//
// A session shares nothing with other sessions: an upload is skipped by its hash only if the same
// session has the content, and the quota of a session counts each of its contents once.
//
// # Versions
//
//	upload ──► version n, the newest ──► replaced by n+1 ──► removed after the session's
//	              │        ▲                                  message retention, unless named
//	              │        └── the newest one was deleted
//	              └── DeleteArtifact
//
// An artifact whose versions are all deleted keeps its row for 30 days, so that its version numbers
// are not used again while references to them may exist.
package artifacts
