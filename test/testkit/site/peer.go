package site

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Peer is another snapshotter that the machine's containerd gets, besides its own
// and Lighter's.
type Peer struct {
	Snapshotter string // what containerd calls it
	// Command starts it; {socket} is where it has to listen, {root} an empty directory for all that
	// it keeps, {registry} the registry's host and port, {containerd} containerd's socket. Empty:
	// containerd has it built in.
	Command      []string
	Capabilities []string          // of the proxy plugin
	Exports      map[string]string // of the proxy plugin, besides root
}

// SetPeer has the machine, from its next Wipe on, run this snapshotter too; nil: none.
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
	names := strings.NewReplacer("{socket}", m.peerSocket(), "{root}", m.path("peer"), "{registry}", registryURL, "{containerd}", m.ContainerdSocket())
	for _, word := range p.Command {
		argv = append(argv, names.Replace(word))
	}
	var err error
	if m.peer, err = m.site.startProcess(p.Snapshotter, argv); err != nil {
		return err
	}
	return m.peer.await(ctx, dial("unix", m.peerSocket()))
}

// peerConfig is what containerd is told of the peer.
func (m *Machine) peerConfig() string {
	p := m.site.peer
	if p == nil {
		return ""
	}
	text := fmt.Sprintf("[[plugins.%q.unpack_config]]\n  platform = \"linux\"\n  snapshotter = %q\n", "io.containerd.transfer.v1.local", p.Snapshotter)
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

// isolation is what containerd is told of its namespaces.
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
