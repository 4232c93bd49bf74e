package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"lighter/install"
	"lighter/install/containerd"
	"lighter/node"
	"lighter/node/doctor"
)

// distribution is how a machine runs the kubelet's containerd. Its paths are below the machine's
// root.
type distribution struct {
	Name           string
	version        string // of containerd
	path           string // of containerd's socket, on the machine
	socket, config string
	owner          containerd.Owner
}

// Sockets of the kubelet's containerd. That of the system is last: on a machine with k3s or k0s it
// is Docker's.
var sockets = []struct {
	path  string
	found func(m install.Machine, config string) distribution
}{
	{"/run/k3s/containerd/containerd.sock", rancher},
	{"/run/k0s/containerd.sock", k0s},
	{node.DefaultConfig().Containerd, plain},
}

// find finds the kubelet's containerd, which runs.
func (h *Host) find(ctx context.Context) (distribution, error) {
	var none error
	for _, s := range sockets {
		socket := h.Machine.Path(s.path)
		if h.Socket != "" && h.Socket != s.path {
			continue
		}
		c, err := doctor.FindContainerd(ctx, socket)
		if !c.Running {
			none = errors.Join(none, err)
			continue
		}
		return h.found(c, s.path, s.found), err
	}
	if none != nil {
		return distribution{}, fmt.Errorf("find the kubelet's containerd: nothing listens: %w", none)
	}
	c, err := doctor.FindContainerd(ctx, h.Machine.Path(h.Socket))
	return h.found(c, h.Socket, plain), err
}

// found returns the distribution of a containerd. The configuration is the one that the process has
// read, if its arguments name one.
func (h *Host) found(c doctor.Containerd, path string, by func(install.Machine, string) distribution) distribution {
	config := c.Config
	if config == doctor.DefaultConfig {
		config = ""
	}
	d := by(h.Machine, config)
	d.version, d.path, d.socket = c.Version, path, h.Machine.Path(path)
	return d
}

// plain is a containerd that the administrator configures, as kubeadm and most clouds have it.
func plain(m install.Machine, config string) distribution {
	if config == "" {
		config = m.Path(doctor.DefaultConfig)
	}
	return distribution{Name: "containerd", config: config}
}

// rancher is k3s or RKE2. Both write containerd's configuration at each start. It imports a
// directory since 2026; before, it was made of a template.
func rancher(m install.Machine, config string) distribution {
	name := "k3s"
	for _, hint := range []string{config, m.Path("/etc/rancher/rke2"), m.Path("/var/lib/rancher/rke2/agent")} {
		if strings.Contains(hint, "rke2") && (hint == config || !install.Missing(hint)) {
			name = "rke2"
		}
	}
	if config == "" {
		config = m.Path("/var/lib/rancher/" + name + "/agent/etc/containerd/config.toml")
	}
	return distribution{Name: name, config: config, owner: containerd.Owner{Name: name,
		Templates: filepath.Dir(config), Settings: m.Path("/etc/rancher/" + name + "/config.yaml.d/90-lighter.yaml")}}
}

// k0s merges the files of a directory into the configuration that it writes.
func k0s(m install.Machine, config string) distribution {
	if config == "" {
		config = m.Path("/etc/k0s/containerd.toml")
	}
	return distribution{Name: "k0s", config: config,
		owner: containerd.Owner{Name: "k0s", Merged: m.Path("/etc/k0s/containerd.d")}}
}
