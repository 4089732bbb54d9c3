package rpc

import "testing"

func TestRequestBuffers_AreAtMostTwiceAsLargeAsTheRequest(t *testing.T) {
	t.Parallel()
	pool := newRequestBuffers()
	for _, size := range []int{1, 255, 256, 257, 5000, 16 << 10, 100_000, largestReused, largestReused + 1, 3 << 20, MaxRequest} {
		larger := pool.Get(min(8*size, MaxRequest))
		pool.Put(larger)
		buf := pool.Get(size)
		if len(*buf) != size || cap(*buf) > max(256, 2*size) {
			t.Errorf("a request of %d bytes gets a buffer of %d, with %d", size, len(*buf), cap(*buf))
		}
		pool.Put(buf)
	}
}
