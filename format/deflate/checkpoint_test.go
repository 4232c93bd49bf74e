package deflate

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
)

// index returns the plain bytes of a stream, and its checkpoints.
func index(t testing.TB, stream []byte, spacing int64) ([]byte, []Checkpoint) {
	t.Helper()
	var points []Checkpoint
	plain, err := io.ReadAll(NewIndexer(bytes.NewReader(stream), spacing, func(c Checkpoint) error {
		c.Window = bytes.Clone(c.Window)
		points = append(points, c)
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	return plain, points
}

// checkResume compares what a checkpoint leads to with the rest of the plain bytes.
func checkResume(t testing.TB, stream, plain []byte, c Checkpoint, valid bool) {
	t.Helper()
	r, err := Resume(bytes.NewReader(stream[c.Start():]), c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if valid && (err != nil || !bytes.Equal(got, plain[c.Out:])) || !valid && len(got) < len(plain)-int(c.Out) {
		t.Errorf("checkpoint at %d, %d bits, plain %d: got %d bytes (%v), want %d", c.In, c.Bits, c.Out, len(got), err,
			len(plain)-int(c.Out))
	}
}

func TestCheckpointsResume(t *testing.T) {
	bits := 0
	for name, s := range streams(t) {
		_, points := index(t, s.stream, 10_000)
		if len(points) == 0 || points[0].Out != 0 {
			t.Errorf("%s: got %d checkpoints, want at least one, at plain byte 0", name, len(points))
		}
		last := int64(-10_001)
		for _, c := range points {
			checkResume(t, s.stream, s.plain, c, true)
			if want := s.plain[max(0, c.Out-WindowSize):c.Out]; !bytes.Equal(c.Window, want) {
				t.Errorf("%s: the window at plain byte %d has %d bytes, want %d, or it differs", name, c.Out,
					len(c.Window), len(want))
			}
			if c.Out != 0 && c.Out-last <= 10_000 {
				t.Errorf("%s: checkpoints at %d and %d", name, last, c.Out)
			}
			last = c.Out
			bits += int(c.Bits)
		}
	}
	if bits == 0 {
		t.Error("no checkpoint is inside a byte: this test shows too little")
	}
}

// A checkpoint is more than the spacing behind the previous one.
func TestSpacing(t *testing.T) {
	block := func(final byte) []byte { return append([]byte{final, 100, 0, 155, 255}, make([]byte, 100)...) }
	blocks := slices.Concat(block(0), block(0), block(0), block(0), block(1))
	plain := make([]byte, 500)
	stream := slices.Concat([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0}, blocks, trailer(t, plain))
	for spacing, want := range map[int64][]int64{0: {0, 100, 200, 300, 400}, 99: {0, 100, 200, 300, 400},
		100: {0, 200, 400}, 200: {0, 300}, 500: {0}} {
		_, points := index(t, stream, spacing)
		var got []int64
		for _, c := range points {
			got = append(got, c.Out)
		}
		if !slices.Equal(got, want) {
			t.Errorf("spacing %d: got checkpoints at %d, want %d", spacing, got, want)
		}
	}
}

// trailer returns the end of a member with these plain bytes.
func trailer(t *testing.T, plain []byte) []byte {
	t.Helper()
	m := compress(t, plain, 6)
	return m[len(m)-8:]
}

// A checkpoint's bytes suffice for the plain bytes up to the next one.
func TestResumeOfASpan(t *testing.T) {
	s := streams(t)["members"]
	_, points := index(t, s.stream, 5_000)
	for i, c := range points[:len(points)-1] {
		next := points[i+1]
		r, err := Resume(bytes.NewReader(s.stream[c.Start():next.In]), c)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, next.Out-c.Out)
		if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, s.plain[c.Out:next.Out]) {
			t.Errorf("span %d: got %v, or wrong bytes", i, err)
		}
		if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.ErrUnexpectedEOF) && err != io.EOF {
			t.Errorf("after span %d: got %d bytes (%v), want none", i, n, err)
		}
	}
}

func TestResumeRefusesInvalidCheckpoints(t *testing.T) {
	for _, c := range []Checkpoint{
		{In: -1}, {In: 0, Bits: 1}, {In: 5, Bits: 8}, {In: 5, Out: -1}, {In: 5, Out: 1, Window: []byte("xx")},
		{In: 5, Out: 1e6, Window: make([]byte, WindowSize+1)},
	} {
		if _, err := Resume(bytes.NewReader(nil), c); err == nil {
			t.Errorf("%+v: got no error", c)
		}
	}
}

// Resume returns the same bytes for a window without the bytes to which nothing refers.
func TestPrunedWindowsResume(t *testing.T) {
	zeros, all := 0, 0
	for name, s := range streams(t) {
		var r *Reader
		var points []Checkpoint
		prune := func() {
			if n := len(points); n > 0 {
				r.Prune(points[n-1].Window)
			}
		}
		r = NewIndexer(bytes.NewReader(s.stream), 40_000, func(c Checkpoint) error {
			prune()
			r.Track()
			c.Window = bytes.Clone(c.Window)
			points = append(points, c)
			return nil
		})
		consumed, read := int64(0), 0
		for buf := make([]byte, 10_000); ; {
			n, err := r.Read(buf)
			read += n
			if r.Consumed() < consumed {
				t.Errorf("%s: %d bytes were consumed, and then %d", name, consumed, r.Consumed())
			}
			if read%7 == 0 {
				checkPrefix(t, s.stream[:r.Consumed()], s.plain[:read])
			}
			if consumed = r.Consumed(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if consumed != int64(len(s.stream)) {
			t.Errorf("%s: %d bytes were consumed, want %d", name, consumed, len(s.stream))
		}
		prune()
		for _, c := range points {
			checkResume(t, s.stream, s.plain, c, true)
			zeros += bytes.Count(c.Window, []byte{0})
			all += len(c.Window)
		}
	}
	if zeros < all/2 {
		t.Errorf("%d of %d bytes are zero: this test shows too little", zeros, all)
	}
}

// checkPrefix checks that the beginning of a stream suffices for these plain bytes.
func checkPrefix(t *testing.T, stream, plain []byte) {
	t.Helper()
	got := make([]byte, len(plain))
	if _, err := io.ReadFull(NewReader(bytes.NewReader(stream)), got); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("%d bytes of a stream do not suffice for %d plain bytes: %v", len(stream), len(plain), err)
	}
}

// A window that is too short, or wrong, leads to an error or to wrong bytes.
func TestResumeWithoutTheWindow(t *testing.T) {
	s := streams(t)["level 6"]
	_, points := index(t, s.stream, 100_000)
	c := points[1]
	c.Window = nil
	r, err := Resume(bytes.NewReader(s.stream[c.Start():]), c)
	if err != nil {
		t.Fatal(err)
	}
	var corrupt *CorruptError
	if _, err := io.ReadAll(r); !errors.As(err, &corrupt) {
		t.Errorf("got %v, want a CorruptError", err)
	}
}

func TestReportEndsTheReading(t *testing.T) {
	s := streams(t)["level 6"]
	failure := errors.New("failure")
	at := int64(0)
	got, err := io.ReadAll(NewIndexer(bytes.NewReader(s.stream), 100_000, func(c Checkpoint) error {
		if at = c.Out; c.Out > 200_000 {
			return failure
		}
		return nil
	}))
	if !errors.Is(err, failure) || !bytes.Equal(got, s.plain[:at]) {
		t.Errorf("got %d bytes (%v), want %d and the error of report", len(got), err, at)
	}
}

// A fuzzer's checkpoint leads to no panic, and to no more bytes than are read.
func FuzzResume(f *testing.F) {
	s := streams(f)["members"]
	_, points := index(f, s.stream, 5_000)
	for _, c := range points {
		f.Add(s.stream[c.Start():min(c.Start()+3000, int64(len(s.stream)))], c.In, c.Bits, c.Out, c.Window)
	}
	f.Fuzz(func(t *testing.T, stream []byte, in int64, bits uint8, out int64, window []byte) {
		r, err := Resume(bytes.NewReader(stream), Checkpoint{In: in, Bits: bits, Out: out, Window: window})
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(r, fuzzLimit))
	})
}
