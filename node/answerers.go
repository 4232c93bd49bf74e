package node

import (
	"context"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/direct"
	"lighter/node/front/containerd"
	"lighter/node/pullsecrets"
	"lighter/node/resolver"
	"lighter/registries"
	"lighter/sleep"
)

// probeEvery is how often a registry that has asked for a longer pause is asked again. Readers of
// mounted images fail after 100 s.
const probeEvery = 10 * time.Second

// openDirect opens the images that start without a hub. If that fails, the node runs without them:
// containers of other images must not wait for it.
func (n *Node) openDirect() {
	config := direct.Config{Root: n.config.Root, Tables: n.config.Direct, Verified: n.config.DirectVerified,
		Chains: n.config.AttachedFrom, Leftovers: n.leftovers, Log: n.log}
	for _, key := range n.config.AttachedKeys {
		if parsed, err := index.ParseKey(key); err == nil { // Check has parsed them
			config.Keys = append(config.Keys, parsed)
		}
	}
	all, err := registries.New(n.config.Registries, n.log, nil)
	if err == nil {
		all.Probe(probeEvery)
		if n.config.Kubeconfig != "" {
			n.pullSecrets = pullsecrets.New(n.config.Kubeconfig, n.config.KubernetesNode, n.log)
			all.SetFallback(n.pullSecrets.Configs)
		}
		n.closers = append(n.closers, all.Close)
		config.Registries, config.Pulled = all, n.openContents()
		n.direct, err = direct.Open(config)
	}
	if err != nil {
		n.log.Error("the node runs without images that start from their registry", "err", err)
		n.direct = direct.Closed(config)
	}
	n.closers = append(n.closers, n.direct.Close)
}

// openContents returns what reads what pulls have fetched, or nil if the node has no containerd.
func (n *Node) openContents() func(context.Context, string, digest.Digest, int64) ([]byte, error) {
	if n.config.Containerd == "" {
		return nil
	}
	contents, err := containerd.OpenContents(n.config.Containerd)
	if err != nil {
		n.log.Warn("manifests are read from their registry once more", "err", err)
		return nil
	}
	n.closers = append(n.closers, contents.Close)
	return contents.Read
}

// openKeys opens the keys whose statements the node believes.
func (n *Node) openKeys() (*resolver.Keys, error) {
	if len(n.config.Hubs) == 0 {
		return resolver.OwnKeys(n.direct.Key()), nil
	}
	keys, err := resolver.NewKeys(n.config.Root, n.config.HubKeys, n.hubs)
	if err == nil {
		keys.SetOwn(n.direct.Key())
	}
	return keys, err
}

// hubTrees returns the trees on this machine that hubs have made.
func (n *Node) hubTrees() ([]chunk.ID, error) {
	all, err := n.trees.List()
	return slices.DeleteFunc(all, n.direct.Has), err
}

// answerers returns what is asked about a pull, in the order of the configured sources. Formats
// that follow each other share an answerer, and so what was read of an image.
func (n *Node) answerers() (all []resolver.Answerer) {
	var formats []string
	addFormats := func() {
		if len(formats) > 0 && n.config.readsRegistries() {
			all = append(all, n.direct.Answerer(formats...))
		}
		formats = nil
	}
	for _, source := range n.config.Sources {
		if source != sourceHub {
			formats = append(formats, source)
			continue
		}
		addFormats()
		if len(n.config.Hubs) > 0 {
			all = append(all, resolver.NewHub(n.hubs))
		}
	}
	addFormats()
	return all
}

// Before each piece of a layer that the node verifies, it waits until no reader waits for bytes,
// for maxYield at most, so that it comes to an end.
const yieldPause, maxYield = 20 * time.Millisecond, 5 * time.Second

// verifyDirect verifies the layers of direct images in the background, until ctx ends.
func (n *Node) verifyDirect(ctx context.Context) {
	n.direct.Verify(ctx, func(ctx context.Context, bytes int64) error {
		for end := time.Now().Add(maxYield); n.isFetching() && time.Now().Before(end); {
			if !sleep.For(ctx, yieldPause) {
				return context.Cause(ctx)
			}
		}
		return n.completion.Admit(ctx, bytes)
	})
}
