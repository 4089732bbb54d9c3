// Package hostile attacks a brokerd process the way that careless and malicious clients do. It has
// tests only:
//
//   - abuse: each line of the table in docs/security.md, through real clients (TestAbuse), and what
//     another client notices of it (make hostile);
//   - bytes: malformed HTTP and TLS, floods, half-open connections, slow readers and writers, and
//     every RPC and every route of HTTP with random and mutated requests (TestBytes, TestFuzz);
//   - memory: hundreds of unfinished or costly calls at once, and what the process occupies (TestMemory);
//   - secrets: credentials and a key that no output contains (TestSecrets);
//   - soak: memory, files and latency under a steady load (make soak).
//
// Tests assert on answers and on what the daemon has in use afterwards, never on time. make hostile
// runs the attacks for longer and measures.
package hostile
