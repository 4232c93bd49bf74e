package prefetch

import "testing"

const piece = 128 << 10

// far is the end function of an endless file.
func far(to int64) int64 { return to }

func TestSequentialReaderGetsGrowingWindows(t *testing.T) {
	var s Sequential
	var asked int64
	last, pieces := int64(0), 0
	const size = 256 << 20
	for offset := int64(0); offset < size; offset += piece {
		r := s.Read(offset, piece, far)
		if r.To <= r.From {
			continue
		}
		if r.From < offset+piece {
			t.Fatalf("asked for %v, which was read at %d", r, offset)
		}
		if asked > 0 && r.From != last {
			t.Fatalf("asked for %v after %d: a gap or twice", r, last)
		}
		asked += r.To - r.From
		last = r.To
		pieces++
		if ahead := r.To - (offset + piece); ahead > max(offset+piece, firstWindow) || ahead > maxWindow {
			t.Fatalf("%d bytes ahead after %d", ahead, offset+piece)
		}
	}
	if asked < size+maxWindow-maxWindow/steps || pieces > 100 {
		t.Errorf("%d bytes asked for in %d pieces", asked, pieces)
	}
}

func TestOneReadProvesNothing(t *testing.T) {
	var s Sequential
	for i := range int64(1000) {
		if r := s.Read(i*(10<<20), piece, far); r.To > r.From {
			t.Fatalf("read %d alone asked for %v", i, r)
		}
	}
}

func TestTwoReadersAreToldApart(t *testing.T) {
	var s Sequential
	asked := 0
	for i := range int64(100) {
		for _, base := range []int64{0, 1 << 30} {
			if r := s.Read(base+i*piece, piece, far); r.To > r.From {
				asked++
				if (r.From < 1<<30) != (base == 0) {
					t.Fatalf("reader at %d asked for %v", base, r)
				}
			}
		}
	}
	if asked < 4 {
		t.Errorf("asked %d times", asked)
	}
}

// The kernel sends the parts of a large read in any order.
func TestReorderedReadsStayOneStream(t *testing.T) {
	var s Sequential
	order := []int64{0, 1, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10}
	var last int64
	for _, i := range order {
		if r := s.Read(i*piece, piece, far); r.To > r.From {
			if r.From < last {
				t.Fatalf("asked for %v twice", r)
			}
			last = r.To
		}
	}
	if last == 0 {
		t.Error("never asked for anything")
	}
}

// A window ends at the end of the file, and the next file gets windows of its own.
func TestFilesEnd(t *testing.T) {
	var s Sequential
	const size = 8 << 20
	asked := int64(0)
	for offset := int64(0); offset < 2*size; offset += piece {
		end := (offset/size + 1) * size
		r := s.Read(offset, piece, func(to int64) int64 { return min(to, end) })
		if r.To <= r.From {
			continue
		}
		if r.To > end {
			t.Fatalf("a reader at %d asked for %v, and the file ends at %d", offset, r, end)
		}
		asked += r.To - r.From
	}
	if asked < 2*size-3*piece {
		t.Errorf("asked for %d bytes of %d", asked, 2*size)
	}
}
