package mount

import "testing"

// Overlay's options are separated by commas and colons, which paths may have, too.
func TestEscape(t *testing.T) {
	if got, want := EscapeOverlay.Replace(`/a,b:c\d`), `/a\,b\:c\\d`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
