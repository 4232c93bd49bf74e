package site

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"lighter/format/index"
	"lighter/wire/client"
)

// Hub is a running hub.
type Hub struct {
	URL  string
	Root string // its directory
	Key  string // its public key; only of the site's own hub

	site    *Site
	address string // where it listens
	process *process
	prefix  []string // what a command line begins with that runs where the hub is
}

// launchHub starts a hub on the registry's side of the link.
func (s *Site) launchHub(ctx context.Context, name, address string) (*Hub, error) {
	h := &Hub{URL: "http://" + address, Root: filepath.Join(s.Dir, name), site: s, address: address}
	client, err := client.New(client.Options{URL: h.URL, PlainHTTP: true})
	if err != nil {
		return nil, err
	}
	if h.process, err = s.startProcess(name, append(h.argv(address), s.options.HubArgs...)); err != nil {
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

// StartSecondHub starts one more hub, empty, beside the site's own. The caller
// closes it before the site.
func (s *Site) StartSecondHub(ctx context.Context) (*Hub, error) {
	h, err := s.launchHub(ctx, "hub2", HubIP+":"+secondHubPort)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// UseHub has nodes that are started from now on ask this hub alone.
func (s *Site) UseHub(h *Hub) { s.options.Hubs, s.options.HubKey = []string{h.URL}, h.Key }

// StartHub starts one more hub, empty, on the machine: it gets its images from
// the registry over the link, as the machine does.
func (m *Machine) StartHub(ctx context.Context, name string) (*Hub, error) {
	const address = "127.0.0.1:7071"
	h := &Hub{URL: "http://" + address, Root: filepath.Join(m.site.Dir, name), site: m.site, address: address, prefix: strings.Fields(m.inside(""))}
	var err error
	if h.process, err = m.site.startProcess(name, slices.Concat(h.prefix, h.argv(address))); err != nil {
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

func (h *Hub) argv(address string) []string {
	return []string{cmp.Or(h.site.options.Hub, h.site.options.Lighter), "hub", "--root", h.Root, "--listen", address, "--plain-http", "--open",
		"--source", HubIP}
}

// Close stops the hub and removes all that it had.
func (h *Hub) Close() error {
	if h == nil {
		return nil
	}
	return errors.Join(h.process.stop(), os.RemoveAll(h.Root))
}

// Kill ends the hub as a crash would.
func (h *Hub) Kill() { h.process.kill() }

// Freeze has the hub say nothing any more, as a network that loses everything
// would, until Thaw.
func (h *Hub) Freeze() error { return h.process.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw undoes Freeze.
func (h *Hub) Thaw() error { return h.process.cmd.Process.Signal(syscall.SIGCONT) }

// Restart starts a hub of the registry's side again, after Kill.
func (h *Hub) Restart(ctx context.Context) (err error) {
	if h.process, err = h.site.startProcess(filepath.Base(h.Root), append(h.argv(h.address), h.site.options.HubArgs...)); err != nil {
		return err
	}
	return h.process.await(ctx, dial("tcp", h.address))
}

// Lighter runs a lighter command that speaks to the hub, and returns its
// standard output: Lighter(ctx, "images", "--json"), Lighter(ctx, "trace show", NAME).
func (h *Hub) Lighter(ctx context.Context, command string, args ...string) (string, error) {
	return h.site.command(ctx, slices.Concat(h.prefix, []string{h.site.options.Lighter}, strings.Fields(command), []string{"--hub", h.URL, "--plain-http"}, args)...)
}

// Add makes the hub take NAME:latest in from the registry; it returns when the
// image can be run.
func (h *Hub) Add(ctx context.Context, name string) error {
	_, err := h.Lighter(ctx, "add", "--source-plain-http", "docker://"+Reference(name), name+":latest")
	return err
}

// AddLayout pushes an OCI layout (its tag latest) to the hub as NAME:latest.
func (h *Hub) AddLayout(ctx context.Context, layout, name string) error {
	_, err := h.Lighter(ctx, "add", "oci:"+layout+":latest", name+":latest")
	return err
}

// Memory returns what the hub uses and the most that it used.
func (h *Hub) Memory() (Memory, error) { return memoryOf(h.process) }

// Stored returns what a directory below the hub's root takes on the disk, in bytes.
func (h *Hub) Stored(below string) (int64, error) { return diskUsage(filepath.Join(h.Root, below)) }
