// Package artifacts keeps files that agents share: names with numbered, immutable versions, whose
// contents are files in the data folder.
//
//	header ──► temporary file ──► size and hash checked, sync ──► rename to its hash ──► commit
//	   │              │
//	   │              └── broken stream, error, shutdown, idle client: the file is removed
//	   └── the session has this hash already ───────────────────────────────────────────► commit
//
// # Files
//
// A content is one file, named by its SHA-256, for all sessions together. The row is committed after
// the file is on disk, and the file is removed after its last row: for every committed row there is a
// file. A crash leaves at most files without rows, which Start removes. Publishing a file with its
// row, and removing a file without rows, exclude each other, so that a file never disappears under
// an upload of the same content. All access goes through an os.Root: no name leaves the folder.
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
