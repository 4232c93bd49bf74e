package main

import (
	"testing"

	"lighter/wire"
)

// Images whose unique bytes are not known have none to show.
func TestUniqueBytesOfImages(t *testing.T) {
	for _, c := range []struct {
		image wire.Image
		want  string
	}{
		{wire.Image{State: wire.StateQueued}, "-"},
		{wire.Image{State: wire.StateActive}, "-"},
		{wire.Image{State: wire.StateFailed}, "-"},
		{wire.Image{State: wire.StateReady, SizesPending: true}, "-"},
		{wire.Image{State: wire.StateReady, SizesPending: true, Unique: 2048}, "2.0 KiB / 0 B"},
		{wire.Image{State: wire.StateReady}, "0 B / 0 B"}, // another image has all of it
	} {
		if got := unique(c.image); got != c.want {
			t.Errorf("%+v: %q, want %q", c.image, got, c.want)
		}
	}
}
