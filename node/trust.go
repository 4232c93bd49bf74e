package node

import (
	"fmt"
	"slices"
	"strings"

	"lighter/node/resolver"
	"lighter/store/origin"
)

// Trust says for which pulls a node takes images from its hubs.
type Trust string

// Trusts of a node.
const (
	TrustAuto  Trust = "auto"  // chain where all hubs are on this machine, else image
	TrustChain Trust = "chain" // for those that name a chain that a hub knows
	TrustImage Trust = "image" // for those of a manifest that a hub knows, from a repository that has it
)

// trusts lists what can be configured.
var trusts = []Trust{TrustAuto, TrustChain, TrustImage}

// TrustStatus says which trust is in force.
type TrustStatus struct {
	Trust Trust  `json:"trust"` // TrustChain or TrustImage
	Why   string `json:"why"`
}

// trust returns what holds with these hubs, and why.
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

// EffectiveTrust says which trust holds with the configured hubs.
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

// newResolver returns what answers for the chains of this node.
func (n *Node) newResolver() (*resolver.Resolver, error) {
	trust := resolver.TrustImage
	if n.config.trust(n.hubs).Trust == TrustChain {
		trust = resolver.TrustChain
	}
	return resolver.New(resolver.Config{
		Root: n.config.Root, Trust: trust, Answerers: []resolver.Answerer{resolver.NewHub(n.hubs)},
		LastReceived: n.hubs.LastReceived, Trees: lazyTrees{n.trees, n.mounts}, Keys: n.keys, Log: n.log,
	})
}
