package site

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Peer is another snapshotter of the machine's containerd, for comparison with Lighter.
type Peer struct {
	Snapshotter string // its name in containerd
	// Command starts the snapshotter. These words are replaced: {socket} by the socket to listen
	// on, {root} by an empty directory for its state, {registry} by the registry's host and port,
	// and {containerd} by containerd's socket. Empty: the snapshotter is built into containerd.
	Command      []string
	Capabilities []string          // of the proxy plugin
	Exports      map[string]string // of the proxy plugin, in addition to root
}

// SetPeer makes the machine run this snapshotter, too, from its next start on, by Wipe for example;
// nil: none.
func (s *Site) SetPeer(p *Peer) { s.peer = p }

func (m *Machine) peerSocket() string { return m.path("peer.sock") }

// startPeer starts the peer's process, if it has one.
func (m *Machine) startPeer(ctx context.Context) error {
	p := m.site.peer
	if p == nil || len(p.Command) == 0 {
		return nil
	}
	if err := os.MkdirAll(m.path("peer"), 0o711); err != nil {
		return err
	}
	argv := strings.Fields(m.inside(""))
	names := strings.NewReplacer("{socket}", m.peerSocket(), "{root}", m.path("peer"), "{registry}", registryURL,
		"{containerd}", m.ContainerdSocket())
	for _, word := range p.Command {
		argv = append(argv, names.Replace(word))
	}
	var err error
	if m.peer, err = m.site.startProcess(p.Snapshotter, argv); err != nil {
		return err
	}
	return m.peer.await(ctx, dial("unix", m.peerSocket()))
}

// peerConfig returns the peer's part of containerd's configuration.
func (m *Machine) peerConfig() string {
	p := m.site.peer
	if p == nil {
		return ""
	}
	text := fmt.Sprintf("[[plugins.%q.unpack_config]]\n  platform = \"linux\"\n  snapshotter = %q\n",
		"io.containerd.transfer.v1.local", p.Snapshotter)
	if len(p.Command) == 0 {
		return text
	}
	text += fmt.Sprintf("[proxy_plugins.%s]\n  type = \"snapshot\"\n  address = %q\n", p.Snapshotter, m.peerSocket())
	if len(p.Capabilities) > 0 {
		text += fmt.Sprintf("  capabilities = [%s]\n", quoted(p.Capabilities))
	}
	text += fmt.Sprintf("  [proxy_plugins.%s.exports]\n    root = %q\n", p.Snapshotter, m.path("peer"))
	for _, key := range slices.Sorted(maps.Keys(p.Exports)) {
		text += fmt.Sprintf("    %s = %q\n", key, p.Exports[key])
	}
	return text
}

// isolation returns the part of containerd's configuration for Options.Isolated.
func (m *Machine) isolation() string {
	if !m.site.options.Isolated {
		return ""
	}
	return fmt.Sprintf("[plugins.%q]\n  content_sharing_policy = \"isolated\"\n", "io.containerd.metadata.v1.bolt")
}

func quoted(words []string) string {
	var all []string
	for _, word := range words {
		all = append(all, fmt.Sprintf("%q", word))
	}
	return strings.Join(all, ", ")
}
