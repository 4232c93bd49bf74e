package site

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"lighter/format/index"
	"lighter/wire"
	"lighter/wire/client"
)

// Hub is a running hub.
type Hub struct {
	URL  string
	Root string // its directory
	Key  string // the public key of Options.Domain; empty for Machine.StartHub

	site    *Site
	address string // the address that it listens on
	process *process
	prefix  []string // starts a command in the hub's network namespace; empty: the enclosure's
}

// launchHub starts a hub on the registry's side of the link.
func (s *Site) launchHub(ctx context.Context, name, address string) (*Hub, error) {
	h := &Hub{URL: "http://" + address, Root: filepath.Join(s.Dir, name), site: s, address: address}
	client, err := client.New(client.Options{URL: h.URL, PlainHTTP: true, Domain: s.options.Domain})
	if err != nil {
		return nil, err
	}
	argv, err := h.argv(address, s.options.HubArgs...)
	if err != nil {
		return nil, err
	}
	if h.process, err = s.startProcess(name, argv); err != nil {
		return nil, err
	}
	return h, h.process.await(ctx, func() error {
		keys, err := client.Keys(ctx)
		if err == nil {
			h.Key = index.FormatKey(keys[0])
		}
		return err
	})
}

// StartSecondHub starts a second, empty hub on SpareAddress. The caller closes it before the site.
func (s *Site) StartSecondHub(ctx context.Context) (*Hub, error) {
	h, err := s.launchHub(ctx, "hub2", HubIP+":"+secondHubPort)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// StartSecondProcess starts a second process of the site's hub on SpareAddress, with the hub's
// keys. Options.HubArgs have to name the database and the bucket that both processes use. The
// caller closes the second process before the site.
func (s *Site) StartSecondProcess(ctx context.Context) (*Hub, error) {
	const name = "hub2"
	if err := copyKeys(s.Hub.Root, filepath.Join(s.Dir, name)); err != nil {
		return nil, err
	}
	h, err := s.launchHub(ctx, name, SpareAddress)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// copyKeys copies the keys of all domains from one root directory of a hub to another.
func copyKeys(from, to string) error {
	const file = "hub.key"
	domains, err := filepath.Glob(filepath.Join(from, "domains", "*", file))
	if err != nil {
		return err
	}
	for _, path := range append(domains, filepath.Join(from, file)) {
		key, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		copied := filepath.Join(to, strings.TrimPrefix(path, from))
		if err := errors.Join(os.MkdirAll(filepath.Dir(copied), 0o700), os.WriteFile(copied, key, 0o600)); err != nil {
			return err
		}
	}
	return nil
}

// UseHub makes h the only hub, and h.Key the pinned key, of nodes that are started from now on.
func (s *Site) UseHub(h *Hub) { s.options.Hubs, s.options.HubKey = []string{h.URL}, h.Key }

// StartHub starts an empty hub on the machine. The hub reads images of the registry over the link.
func (m *Machine) StartHub(ctx context.Context, name string) (*Hub, error) {
	const address = "127.0.0.1:7071"
	h := &Hub{URL: "http://" + address, Root: filepath.Join(m.site.Dir, name), site: m.site, address: address,
		prefix: strings.Fields(m.inside(""))}
	argv, err := h.argv(address)
	if err != nil {
		return nil, err
	}
	if h.process, err = m.site.startProcess(name, slices.Concat(h.prefix, argv)); err != nil {
		return nil, err
	}
	err = h.process.await(ctx, func() error {
		_, err := h.Lighter(ctx, "images")
		return err
	})
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// RegistryTable is the part of a hub's configuration that allows it to read the registry.
const RegistryTable = "\n[[registry]]\nhost = \"" + HubIP + "\"\nprivate = true\n"

// argv returns the command of a hub. It has a configuration file unless more gives one, which then
// has RegistryTable.
func (h *Hub) argv(address string, more ...string) ([]string, error) {
	program := cmp.Or(h.site.options.Hub, h.site.options.Lighter)
	argv := append([]string{program, "hub", "--root", h.Root, "--listen", address, "--plain-http", "--open"}, more...)
	switch {
	case slices.Contains(more, "--config"):
		return argv, nil
	case program != h.site.options.Lighter: // an earlier version
		return append(argv, "--source", HubIP), nil
	}
	file := h.Root + ".toml"
	return append(argv, "--config", file), os.WriteFile(file, []byte(h.site.options.HubConfig+RegistryTable), 0o600)
}

// Close stops the hub and removes its data.
func (h *Hub) Close() error {
	if h == nil {
		return nil
	}
	return errors.Join(h.process.stop(), os.RemoveAll(h.Root))
}

// Kill kills the hub with SIGKILL, like a crash.
func (h *Hub) Kill() { h.process.kill() }

// Stop ends the hub with SIGTERM, and waits until it has ended.
func (h *Hub) Stop() error { return h.process.stop() }

// Freeze stops the hub's process until Thaw. Nodes can still connect, because the kernel accepts
// connections, but they get no answers.
func (h *Hub) Freeze() error { return h.process.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw undoes Freeze.
func (h *Hub) Thaw() error { return h.process.cmd.Process.Signal(syscall.SIGCONT) }

// Log returns the path of the hub's log.
func (h *Hub) Log() string { return h.process.log }

// Restart starts a hub on the registry's side of the link again, after Kill.
func (h *Hub) Restart(ctx context.Context) (err error) {
	argv, err := h.argv(h.address, h.site.options.HubArgs...)
	if err != nil {
		return err
	}
	if h.process, err = h.site.startProcess(filepath.Base(h.Root), argv); err != nil {
		return err
	}
	return h.process.await(ctx, dial("tcp", h.address))
}

// Lighter runs a lighter command against the hub, and returns its standard output. Examples:
// Lighter(ctx, "images", "--json"), Lighter(ctx, "trace show", NAME).
func (h *Hub) Lighter(ctx context.Context, command string, args ...string) (string, error) {
	at := []string{"--hub", h.URL, "--plain-http"}
	if domain := h.site.options.Domain; domain != "" {
		at = append(at, "--domain", domain)
	}
	return h.site.command(ctx, slices.Concat(h.prefix, []string{h.site.options.Lighter}, strings.Fields(command), at,
		args)...)
}

// State returns the state of the image that the hub has under a name. It is empty if there is none.
// The error has the reason of a failed image.
func (h *Hub) State(ctx context.Context, name string) (string, error) {
	out, err := h.Lighter(ctx, "images", "--json")
	if err != nil {
		return "", err
	}
	var all []wire.Image
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return "", fmt.Errorf("list the hub's images: %w", err)
	}
	for _, i := range all {
		switch {
		case i.Name == name && i.State == wire.StateFailed:
			return i.State, fmt.Errorf("image %s has failed: %s", name, i.Error)
		case i.Name == name:
			return i.State, nil
		}
	}
	return "", nil
}

// Add makes the hub ingest NAME:latest from the registry. It returns when the image is ready.
func (h *Hub) Add(ctx context.Context, name string) error {
	_, err := h.Lighter(ctx, "add", "--source-plain-http", "docker://"+Reference(name), name+":latest")
	return err
}

// AddLayout pushes the image with the tag latest in an OCI layout to the hub, as NAME:latest.
func (h *Hub) AddLayout(ctx context.Context, layout, name string) error {
	_, err := h.Lighter(ctx, "add", "oci:"+layout+":latest", name+":latest")
	return err
}

// Memory returns the memory of the hub.
func (h *Hub) Memory() (Memory, error) { return memoryOf(h.process) }

// Stored returns the disk space that a directory below the hub's root uses, in bytes.
func (h *Hub) Stored(below string) (int64, error) { return diskUsage(filepath.Join(h.Root, below)) }
