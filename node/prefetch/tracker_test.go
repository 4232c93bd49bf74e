package prefetch

import "testing"

const piece = 128 << 10

// far is the end function (see tracker.read) of an endless file.
func far(to int64) int64 { return to }

// The range ahead of a reader grows with the bytes that it has read, up to maxWindow. Ranges have
// neither gaps nor overlaps.
func TestSequentialReaderGetsGrowingWindows(t *testing.T) {
	var tr tracker
	var requested int64
	last, pieces := int64(0), 0
	const size = 256 << 20
	for offset := int64(0); offset < size; offset += piece {
		r := tr.read(offset, piece, far)
		if r.to <= r.from {
			continue
		}
		if r.from < offset+piece {
			t.Fatalf("requested %v, but the bytes before %d were read already", r, offset+piece)
		}
		if requested > 0 && r.from != last {
			t.Fatalf("requested %v after %d: want no gap and no overlap", r, last)
		}
		requested += r.to - r.from
		last = r.to
		pieces++
		if ahead := r.to - (offset + piece); ahead > max(offset+piece, minWindow) || ahead > maxWindow {
			t.Fatalf("requested %d bytes ahead after %d bytes were read, want at most %d", ahead, offset+piece,
				min(max(offset+piece, minWindow), maxWindow))
		}
	}
	if requested < size+maxWindow-maxWindow/windowSteps || pieces > 100 {
		t.Errorf("requested %d bytes in %d ranges, want the whole file and a window in at most 100", requested, pieces)
	}
}

// A single read does not make a sequential reader, so nothing is requested ahead of it.
func TestOneReadProvesNothing(t *testing.T) {
	var tr tracker
	for i := range int64(1000) {
		if r := tr.read(i*(10<<20), piece, far); r.to > r.from {
			t.Fatalf("read %d is not near another read, and %v was requested, want nothing", i, r)
		}
	}
}

func TestTwoReadersAreDistinguished(t *testing.T) {
	var tr tracker
	requested := 0
	for i := range int64(100) {
		for _, base := range []int64{0, 1 << 30} {
			if r := tr.read(base+i*piece, piece, far); r.to > r.from {
				requested++
				if (r.from < 1<<30) != (base == 0) {
					t.Fatalf("for the reader that began at %d, %v was requested, want a range of its own file", base, r)
				}
			}
		}
	}
	if requested < 4 {
		t.Errorf("%d ranges were requested, want at least 4", requested)
	}
}

// Reads that arrive out of order count as one sequential reader: the kernel sends the parts of a
// large read in any order.
func TestReorderedReadsAreOneReader(t *testing.T) {
	var tr tracker
	order := []int64{0, 1, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10}
	var last int64
	for _, i := range order {
		if r := tr.read(i*piece, piece, far); r.to > r.from {
			if r.from < last {
				t.Fatalf("requested %v twice", r)
			}
			last = r.to
		}
	}
	if last == 0 {
		t.Error("nothing was requested")
	}
}

// A window ends at the end of the file, and the next file gets windows of its own.
func TestFilesEnd(t *testing.T) {
	var tr tracker
	const size = 8 << 20
	requested := int64(0)
	for offset := int64(0); offset < 2*size; offset += piece {
		end := (offset/size + 1) * size
		r := tr.read(offset, piece, func(to int64) int64 { return min(to, end) })
		if r.to <= r.from {
			continue
		}
		if r.to > end {
			t.Fatalf("a reader at %d requested %v, but the file ends at %d", offset, r, end)
		}
		requested += r.to - r.from
	}
	if requested < 2*size-3*piece {
		t.Errorf("requested %d of %d bytes, want nearly all", requested, 2*size)
	}
}
