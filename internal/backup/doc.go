// Package backup copies the broker's data into one file while the broker runs, and unpacks such a
// file into a new data folder.
//
//	BackupDatabase ─► space checked ─► contents kept ─► snapshot copied to a temporary file ─► file streamed
//	                                                          │
//	                                                          └─ the only time for which a snapshot is held
//
// # The file
//
// A backup is one tar archive:
//
//	manifest.json      the format, the version of brokerd, the revision, the size and hash of the database
//	brokerd.db         the database as one commit has left it
//	artifacts/SHA256   one file for each content that this database refers to
//	SHA256             the hash of all bytes before this entry
//
// The last entry detects a file that was cut off or altered. The archive of removed messages and the
// operator's credential are not part of a backup.
//
// # Guarantees
//
// The database has every change that was committed when the copy began, and none in part. The copy
// goes to a temporary file in the data folder at the speed of the disk, so a slow client does not
// delay it. Only one backup runs at a time. The temporary file is removed when the call ends, however
// it ends; after a crash, Start removes it. No content of an artifact is removed during a backup.
package backup
