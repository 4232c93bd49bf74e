package site

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Directories below Work with the programs of containerd.
const (
	Ours   = "tools"          // built by test/setup
	Debian = "debian/usr/bin" // of Debian's package
)

// tool returns the path of one of containerd's programs.
func (m *Machine) tool(name string) string { return filepath.Join(m.site.path[0], name) }

// completeConfig adapts an administrator's configuration of containerd to this machine: all of
// containerd's state lies below the machine's directory, the node's root and socket are the
// machine's, and the registry is accessed without TLS.
func (m *Machine) completeConfig(text string) (string, error) {
	hosts := m.path("hosts")
	host := filepath.Join(hosts, registryURL)
	if err := os.MkdirAll(host, 0o755); err != nil {
		return "", err
	}
	server := "http://" + registryURL
	if err := os.WriteFile(filepath.Join(host, "hosts.toml"),
		fmt.Appendf(nil, "server = %q\n[host.%q]\n", server, server), 0o644); err != nil {
		return "", err
	}
	text = strings.NewReplacer("/run/lighter/lighter.sock", m.nodeSocket(), "/var/lib/lighter",
		m.NodeRoot()).Replace(text)
	before, after, ok := strings.Cut(text, "\n[")
	if !ok {
		return "", fmt.Errorf("complete containerd's configuration: it has no table: %q", text)
	}
	text = fmt.Sprintf(`%s
root = %q
state = %q
imports = []
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[%s
[grpc]
  address = %q
[ttrpc]
  address = %q
`, before, m.path("containerd"), m.path("state"), after, m.ContainerdSocket(), m.ContainerdSocket()+".ttrpc")
	if strings.Contains(text, "\nversion = 2\n") {
		return text + fmt.Sprintf("[plugins.%q.registry]\n  config_path = %q\n", "io.containerd.grpc.v1.cri", hosts),
			nil
	}
	return text + fmt.Sprintf("[plugins.%q.registry]\n  config_path = %q\n", "io.containerd.cri.v1.images", hosts), nil
}
