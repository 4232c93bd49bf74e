package node

import (
	"fmt"
	"strings"

	"lighter/node/report"
	"lighter/node/resolver"
	"lighter/store/origin"
)

// Trust says which pulls get images from a node's hubs.
type Trust = resolver.Trust

// Values of Config.Trust.
const (
	TrustAuto  Trust = "auto" // TrustChain if all hubs are on this machine, else TrustImage
	TrustChain       = resolver.TrustChain
	TrustImage       = resolver.TrustImage
)

var trusts = []Trust{TrustAuto, TrustChain, TrustImage}

// trust returns the trust that applies with these hubs.
func (c *Config) trust(hubs *origin.Failover) report.Trust {
	switch remote := hubs.Remote(); {
	case c.Trust != TrustAuto:
		return report.Trust{Trust: c.Trust, Why: "as configured"}
	case c.readsRegistries():
		return report.Trust{Trust: TrustImage, Why: "images start from registries, which decide who may pull"}
	case len(remote) == 0:
		return report.Trust{Trust: TrustChain, Why: "every hub is on this machine"}
	default:
		return report.Trust{Trust: TrustImage,
			Why: fmt.Sprintf("hub %s is not on this machine", strings.Join(remote, ", "))}
	}
}

// EffectiveTrust returns the trust that applies with the configured hubs, and why.
func (c *Config) EffectiveTrust() (report.Trust, error) {
	hubs, err := c.origins(noLog)
	if err != nil {
		return report.Trust{}, err
	}
	return c.trust(hubs), nil
}
