package bytesize_test

import (
	"strings"
	"testing"

	"lighter/bytesize"
)

// Users write sizes with decimal and binary units, or as plain numbers of bytes.
func TestSizesAreRead(t *testing.T) {
	for text, want := range map[string]bytesize.Size{
		"0": 0, "1073741824": 1 << 30, "10GiB": 10 << 30, "500M": 500e6, "500MB": 500e6, "1.5 GiB": 3 << 29, "7b": 7,
	} {
		var got bytesize.Size
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "much", "-1", "-1GiB", "10 miles", "8EiB", "99999999999999999999"} {
		got := bytesize.Size(5)
		err := got.UnmarshalText([]byte(text))
		if err == nil || !strings.Contains(err.Error(), "write 20GiB") || got != 5 {
			t.Errorf("%q is %d (%v), want an error that says what to write", text, got, err)
		}
	}
}

// A printed size is the same size when it is read again.
func TestSizesArePrinted(t *testing.T) {
	for size, want := range map[bytesize.Size]string{
		0: "0B", 1: "1B", 1 << 10: "1KiB", 1 << 30: "1GiB", 3 << 29: "1536MiB", 500e9: "500GB", 1_500_000_000: "1500MB",
		1<<30 + 1: "1073741825B", 1 << 60: "1EiB", 1<<62 - 1: "4611686018427387903B", 64 << 30: "64GiB",
	} {
		if size.String() != want {
			t.Errorf("%d is printed as %s, want %s", size, size, want)
		}
		text, err := size.MarshalText()
		var again bytesize.Size
		if err := again.UnmarshalText(text); err != nil || again != size {
			t.Errorf("%s is read as %d (%v), want %d", text, again, err, size)
		}
		if err != nil {
			t.Error(err)
		}
	}
	if got := bytesize.Size(1<<30 + 1).Rounded(); got != "1.0GiB" {
		t.Errorf("rounded: %s, want 1.0GiB", got)
	}
}
