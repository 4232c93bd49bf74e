package node

import (
	"errors"
	"testing"
)

// TrustAuto means TrustChain if all hubs are on this machine, and TrustImage otherwise. The other
// values do not depend on the hubs.
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
			t.Errorf("trust %s with hubs %q: got %+v, %v; want %s with a reason", c.trust, c.hubs, got, err, c.want)
		}
	}
	for _, bad := range []Trust{"", "images", "Chain", "none"} {
		config := DefaultConfig()
		if config.Trust = bad; config.Check() == nil {
			t.Errorf("trust %q is accepted, want an error", bad)
		}
	}
}

// A node may be without hubs if images start from their registry. Registries then decide who may
// pull.
func TestTrustOfDirectImages(t *testing.T) {
	for _, set := range []func(c *Config, patterns ...string){
		func(c *Config, patterns ...string) { c.Direct = patterns },
		func(c *Config, patterns ...string) { c.DirectVerified = patterns },
	} {
		config := DefaultConfig()
		config.Hubs = nil
		if config.Check() == nil {
			t.Error("a node without hubs and direct images is accepted")
		}
		set(&config, "reg.example.org/**")
		got, err := config.EffectiveTrust()
		if err = errors.Join(err, config.Check()); err != nil || got.Trust != TrustImage {
			t.Errorf("got %+v, %v, want trust image", got, err)
		}
		config.Trust = TrustChain
		if config.Check() == nil {
			t.Error("trust chain is accepted")
		}
		config.Trust = TrustAuto
		if set(&config, "["); config.Check() == nil {
			t.Error("an invalid pattern is accepted")
		}
	}
}
