// Package auth keeps the credentials of the broker's clients and recognises their secrets.
//
//	Issue ──► ACTIVE ──┬── Revoke, EndSession ──► REVOKED ──┐
//	                   └── expires_at ──────────► EXPIRED ──┴── 30 days ──► removed
//
// The table has the SHA-256 of each secret, never the secret. Memory has every credential of the
// table, and changes only after the commit of the change, so a credential that Identify accepts is on
// disk. Start rebuilds it. There are at most 10,000 active credentials, and as many ended ones.
//
// # Guarantees
//
//   - Identify finds a credential by the first half of the SHA-256 of the presented secret, and
//     compares the whole in constant time. It reads no disk and waits for no commit.
//   - A credential counts until its expires_at by the wall clock, even if the broker can write
//     nothing. Its Grant.Ended is done when it no longer counts, which ends its calls: see package rpc.
//   - The secret is in no event and no log. Only the answer of IssueCredential contains it: package
//     once keeps the id of a repeated request, so a repeat gets the credential without its secret.
//
// # Login links
//
//	CreateLoginLink ──┬── Login ──► a credential for 12 h, or until Logout
//	                  └── 2 min ──► removed
//
// A link has a secret too, and memory has its SHA-256 until its use, so a restart voids the links. There
// are at most 100 unused ones. Login removes the link before it issues the credential: of two clients
// that present the same link, at most one receives a token.
//
// # Failed attempts
//
// Each address may fail 20 times, and one more time every 3 s. Beyond that, Refuse returns
// fault.Exhausted in place of the cause. Identify accepts a valid secret in any case, so an attacker
// cannot lock out a client that shares its address, and a client whose credential has ended always
// learns that. Memory has at most 4,096 addresses; further ones
// share one account. An IPv6 client counts as its /64 network.
//
// # Events
//
// Changes are events in their own transaction. Uses and failures happen without a transaction: they
// wait in a list of at most 1,000 entries that the writer adds to its next batch. A use is an event
// when the credential had none from that address for an hour; failures are one event a minute for
// each address, with their count. All these events are of the broker itself, so only operators see
// them.
package auth
