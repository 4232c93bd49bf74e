package trace

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/test/testkit/golden"
)

const device = 1 << 30

func sampleTrace() Trace {
	return Trace{Tree: chunk.Sum([]byte("tree")), Reads: []Read{
		{At: 0, Offset: 0, Length: 4096},
		{At: 0, Offset: device - 4096, Length: 4096},
		{At: 17 * time.Millisecond, Offset: 8192, Length: 131072},
	}}
}

func TestTrace(t *testing.T) {
	want := sampleTrace()
	enc := want.Encode()
	if got, err := Decode(enc, want.Tree, device); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, error %v; want %v", got, err, want)
	}
	if got, err := Decode(Trace{}.Encode(), want.Tree, device); err != nil || len(got.Reads) != 0 {
		t.Errorf("an empty trace: got %v, error %v; want no reads and no error", got, err)
	}
	golden.Compare(t, "trace.golden", string(enc)+"\n")
}

func TestInvalidTraces(t *testing.T) {
	for _, body := range []string{
		``, `null x`, `[]`, `{"reads":[]} {}`, `{"reads":[],"host":"a"}`, `{"reads":[[0,0,4096,1]]}`,
		`{"reads":[[0,0]]}`, `{"reads":[null]}`,
		`{"reads":[[-1,0,4096]]}`, `{"reads":[[3600001,0,4096]]}`, `{"reads":[[2,0,4096],[1,0,4096]]}`,
		`{"reads":[[0,0,0]]}`, `{"reads":[[0,0,-4096]]}`, `{"reads":[[0,1,4096]]}`, `{"reads":[[0,0,4095]]}`,
		`{"reads":[[0,-4096,4096]]}`,
		`{"reads":[[0,1073741824,4096]]}`, `{"reads":[[0,4096,1073741824]]}`,
		`{"reads":[[0,9223372036854771712,9223372036854771712]]}`,
		`{"reads":[[0,0,1e300]]}`, `{"reads":[` + strings.Repeat(`[0,0,4096],`,
			MaxReads) + `[0,0,4096]]}`, `{"reads":[]}` + strings.Repeat(" ", MaxBytes),
	} {
		if got, err := Decode([]byte(body), chunk.ID{}, device); err == nil {
			t.Errorf("%.60s was accepted, with %d reads", body, len(got.Reads))
		}
	}
}

// A trace that is too long is truncated to an acceptable one.
func TestLongTraces(t *testing.T) {
	for _, r := range []Read{{At: 0, Offset: 0, Length: 4096}, {At: MaxTime, Offset: 1 << 43, Length: 1 << 30}} {
		long := Trace{Reads: make([]Read, 2*MaxReads)}
		for i := range long.Reads {
			long.Reads[i] = r
		}
		got, err := Decode(long.Encode(), chunk.ID{}, maxDevice)
		if err != nil || len(got.Reads) < MaxReads*9/10 {
			t.Errorf("%d reads, error %v, want most of them", len(got.Reads), err)
		}
	}
}

func sampleRecordings() []Recording {
	return []Recording{
		{Starts: 12, Entries: []Entry{
			{At: 0, Path: "/usr/bin/bash", Offset: 0, Length: 131072,
				Chunks: []chunk.ID{chunk.Sum([]byte("a")), chunk.Sum([]byte("b"))}},
			{At: 3 * time.Millisecond, Path: "/odd name/100%\n\xff", Offset: 4096, Length: 1},
		}},
		{Starts: 1},
	}
}

func TestRecordings(t *testing.T) {
	want := sampleRecordings()
	text := EncodeText(want)
	if got, err := ParseText(text); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, error %v; want %v", got, err, want)
	}
	golden.Compare(t, "recordings.golden", string(text))
}

func TestInvalidTexts(t *testing.T) {
	id := chunk.Sum(nil).String()
	for _, lines := range []string{
		"", "lighter trace 2\n", "lighter trace 1", "lighter trace 1\n\n", "lighter trace 1\r\n",
		"lighter trace 1\n0 0 1 /a\n",
	} {
		if _, err := ParseText([]byte(lines)); err == nil {
			t.Errorf("%q was accepted", lines)
		}
	}
	for _, line := range []string{
		"starts 0", "starts -1", "starts 01", "starts 2147483649", "starts", "starts ", "", "0 0 1", "0 0 1 ",
		"0 0 1 a", "0 0 1 /a/", "0 0 1 //a", "0 0 1 /a/../b",
		"0 0 1 /a ", "0 0 1 /a x", "0 0 1 /a " + id[1:], "0 0 1 /a " + strings.Repeat("0",
			64), "0  0 1 /a", "-1 0 1 /a", "3600001 0 1 /a", "0 -1 1 /a", "0 0 0 /a",
		"0 8796093022208 1 /a", "0 0 8796093022209 /a", "0 9223372036854775807 9223372036854775807 /a", "0 0 1 /%",
		"0 0 1 /%4", "0 0 1 /%61", "0 0 1 /%0a", "0 0 1 /%00", "0 0 1 /a\t",
		"0 0 1 /" + strings.Repeat("a", 4095), "1 0 1 /a\n0 0 1 /a",
	} {
		if got, err := ParseText([]byte("lighter trace 1\nstarts 1\n" + line + "\n")); err == nil {
			t.Errorf("%.60q was accepted: %v", line, got)
		}
	}
	many := "lighter trace 1\n" + strings.Repeat("starts 1\n", MaxRecordings+1)
	long := "lighter trace 1\nstarts 1\n" + strings.Repeat("0 0 1 /a\n", MaxEntries+1)
	for _, text := range []string{many, long, strings.Repeat(" ", MaxText+1)} {
		if _, err := ParseText([]byte(text)); err == nil {
			t.Errorf("a text of %d bytes was accepted", len(text))
		}
	}
}

// EncodeText leaves out what exceeds the bounds, so that ParseText accepts its output.
func TestRecordingsWithinBounds(t *testing.T) {
	var recordings []Recording
	for range MaxRecordings + 1 {
		recordings = append(recordings, Recording{})
	}
	recordings[0].Entries = []Entry{{Path: "relative", Length: 1}, {At: time.Second, Path: "/b", Length: 1},
		{Path: "/before", Length: 1}, {At: time.Second, Path: "/c", Length: 1}}
	for i := range MaxEntries + 1 {
		recordings[1].Entries = append(recordings[1].Entries, Entry{Path: fmt.Sprint("/", i), Length: 1})
	}
	for range 1000 {
		recordings[2].Entries = append(recordings[2].Entries, Entry{Path: "/big", Length: 1,
			Chunks: make([]chunk.ID, 1000)})
		for i := range recordings[2].Entries[len(recordings[2].Entries)-1].Chunks {
			recordings[2].Entries[len(recordings[2].Entries)-1].Chunks[i] = chunk.Sum(nil)
		}
	}
	text := EncodeText(recordings)
	got, err := ParseText(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(got[0].Entries) != 2 || len(got[1].Entries) != MaxEntries || len(got[2].Entries) < 400 ||
		got[2].Starts != 1 {
		t.Errorf("the recordings have %d, %d and %d entries, the third has %d starts; "+
			"want 2, %d and at least 400 entries, and 1 start", len(got[0].Entries), len(got[1].Entries),
			len(got[2].Entries), got[2].Starts, MaxEntries)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(sampleTrace().Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Decode(b, chunk.Sum(nil), device)
		if err != nil {
			return
		}
		if again, err := Decode(got.Encode(), chunk.Sum(nil), device); err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("encoded and decoded again: got %v, %v; want %v", again, err, got)
		}
	})
}

func FuzzParseText(f *testing.F) {
	f.Add(EncodeText(sampleRecordings()))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := ParseText(text)
		if err != nil {
			return
		}
		if again := EncodeText(got); !bytes.Equal(again, text) {
			t.Errorf("%q is encoded again as %q", text, again)
		}
	})
}
