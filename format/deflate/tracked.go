package deflate

// tracked is the window of a checkpoint, of which it is recorded what matches refer to. The zero
// value tracks nothing.
type tracked struct {
	at       int // of the output buffer: the end of the window; may be negative
	referred [WindowSize]bool
}

// match records a match that begins before the end of the window. Bytes that the match repeats are
// behind the window.
func (t *tracked) match(from, length int) {
	for i := from; i < min(from+length, t.at); i++ {
		if at := i - t.at + WindowSize; at >= 0 {
			t.referred[at] = true
		}
	}
}

// Track begins to record which bytes of a window are referred to, and forgets the previous window.
// It is called by the function that takes checkpoints, for the window of its checkpoint.
func (r *Reader) Track() {
	r.tracked = tracked{at: r.write}
}

// Prune sets those bytes of a window to zero to which nothing refers that was decoded so far. It is
// the window of the checkpoint of the last call of Track. Blocks refer to a window from the first
// WindowSize plain bytes after it only. If these were decoded, Resume returns the same bytes for
// the pruned window.
func (r *Reader) Prune(window []byte) {
	for i := range window {
		if !r.tracked.referred[WindowSize-len(window)+i] {
			window[i] = 0
		}
	}
}

// Consumed returns how many compressed bytes suffice for the plain bytes that were returned. Up to
// 64 KiB of further plain bytes may be in them.
func (r *Reader) Consumed() int64 {
	in, _ := r.position()
	return in
}
