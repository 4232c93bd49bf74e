package chunk

import "testing"

func TestScan(t *testing.T) {
	want := Sum([]byte("a"))
	var got ID
	if err := got.Scan(want[:]); err != nil || got != want {
		t.Errorf("scanned %s, %v, want %s", got, err, want)
	}
	for _, stored := range []any{nil, []byte{}, want[:31], "a", int64(1)} {
		if err := got.Scan(stored); err == nil || got != want {
			t.Errorf("scanned %v: %s, %v, want an error and no change", stored, got, err)
		}
	}
}
