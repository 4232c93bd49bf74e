package node

import (
	"fmt"
	"slices"
	"strings"

	"lighter/node/report"
	"lighter/node/resolver"
	"lighter/store/origin"
)

// Trust is for which pulls a node takes images from its hubs.
type Trust string

// Trusts of a node.
const (
	TrustAuto  Trust = "auto"  // chain where all hubs are on this machine, else image
	TrustChain Trust = "chain" // for pulls that name a chain that a hub knows
	TrustImage Trust = "image" // for pulls of a manifest that a hub knows, from a repository that has it
)

// trusts are the values that can be configured.
var trusts = []Trust{TrustAuto, TrustChain, TrustImage}

// TrustStatus is the trust that applies, and why.
type TrustStatus struct {
	Trust Trust // TrustChain or TrustImage
	Why   string
}

func (t TrustStatus) report() report.Trust { return report.Trust{Trust: string(t.Trust), Why: t.Why} }

func (t TrustStatus) resolverTrust() resolver.Trust {
	if t.Trust == TrustChain {
		return resolver.TrustChain
	}
	return resolver.TrustImage
}

// trust returns the trust that applies with these hubs.
func (c *Config) trust(hubs *origin.Failover) TrustStatus {
	switch remote := hubs.Remote(); {
	case c.Trust != TrustAuto:
		return TrustStatus{c.Trust, "as configured"}
	case len(remote) == 0:
		return TrustStatus{TrustChain, "every hub is on this machine"}
	default:
		return TrustStatus{TrustImage, fmt.Sprintf("hub %s is not on this machine", strings.Join(remote, ", "))}
	}
}

// EffectiveTrust returns the trust that applies with the configured hubs.
func (c *Config) EffectiveTrust() (TrustStatus, error) {
	hubs, err := c.origins(discarded)
	if err != nil {
		return TrustStatus{}, err
	}
	return c.trust(hubs), nil
}

func (c *Config) checkTrust() error {
	if !slices.Contains(trusts, c.Trust) {
		return fmt.Errorf("trust %q is not one of %v", c.Trust, trusts)
	}
	return nil
}
