package node

import (
	"testing"
)

// Where nothing is said, hubs decide: chains count where all of them are on this machine.
func TestTrust(t *testing.T) {
	for _, c := range []struct {
		trust Trust
		hubs  []string
		want  Trust
	}{
		{TrustAuto, []string{"http://127.0.0.1:7070"}, TrustChain},
		{TrustAuto, []string{"http://localhost:7070", "unix:/run/hub.sock", "http://[::1]:7070"}, TrustChain},
		{TrustAuto, []string{"https://hub.example.org"}, TrustImage},
		{TrustAuto, []string{"http://127.0.0.1:7070", "https://mirror.example.org"}, TrustImage},
		{TrustChain, []string{"https://hub.example.org"}, TrustChain},
		{TrustImage, []string{"http://127.0.0.1:7070"}, TrustImage},
	} {
		config := DefaultConfig()
		config.Trust, config.Hubs = c.trust, c.hubs
		if got, err := config.EffectiveTrust(); err != nil || got.Trust != c.want || got.Why == "" {
			t.Errorf("%s with %q: %+v, %v", c.trust, c.hubs, got, err)
		}
	}
	for _, bad := range []Trust{"", "images", "Chain", "none"} {
		config := DefaultConfig()
		if config.Trust = bad; config.Check() == nil {
			t.Errorf("trust %q is accepted", bad)
		}
	}
}
