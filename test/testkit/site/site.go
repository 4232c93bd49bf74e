package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"lighter/test/testkit/link"
	"lighter/test/testkit/workdir"
)

// HubIP is the address on the hub's and the registry's side of the link. The addresses of a site
// are the same in every enclosure.
const HubIP = "10.64.0.1"

// SpareAddress is a second address on the hub's side of the link. The hubs of StartSecondHub and
// StartSecondProcess listen there.
const SpareAddress = HubIP + ":" + secondHubPort

// MachineIP is the address on the machine's side of the link.
const MachineIP = "10.64.0.2"

const (
	registryPort  = "5000"
	hubPort       = "7070"
	secondHubPort = "7072"
	registryURL   = HubIP + ":" + registryPort
	hubAddress    = HubIP + ":" + hubPort
	hubName       = "hub" // of its directory, below the site's
)

// Options configure a site.
type Options struct {
	Lighter string   // the lighter binary; empty: neither hub nor node
	Link    string   // rate of the link in both directions, in tc's notation; default: 1gbit
	Delayed bool     // a proxy on the link adds latency, at first almost none; see SetLink
	HubArgs []string // more flags for the hub
	// HubConfig is text of the hub's configuration file, unless HubArgs name another one.
	HubConfig string
	NodeArgs  []string // more flags for the node
	Hub       string   // another binary for the hub; empty: Lighter
	Node      string   // another binary for the node; empty: Lighter
	Hubs      []string // URLs of the node's hubs; nil: the site's hub
	HubKey    string   // the key that the node pins; empty: the hub's
	// Domain is the hub's domain that the node and Hub.Lighter use; empty: the domain default.
	// HubArgs have to configure any other domain.
	Domain string
	// Ingested are images of LIGHTER_WORK that the registry and the hub have from the start.
	Ingested []string
	// Unlabelled leaves containerd's remote snapshot annotations switched off, as they are by
	// default. The node then runs with trust = "chain".
	Unlabelled bool
	// Differ makes containerd ask the node's differ first.
	Differ bool
	// Containerd selects the machine's containerd: Ours (the default) or Debian.
	Containerd string
	// Programs is a directory below Work whose programs all processes use instead of the host's.
	Programs string
	// Config is an administrator's configuration of containerd, which this package completes. If it
	// is empty, this package generates one.
	Config   string
	RemapIDs bool   // the node maps owners into user namespaces, and containerd is configured for it
	NodeRoot string // the node's root; default: below the machine's directory
	Unpacks  int    // layers that containerd unpacks at once; default: 1
	// Isolated makes containerd's namespaces share no content. Each namespace pulls its images over
	// the link.
	Isolated bool
}

// Site is a running site.
type Site struct {
	Dir     string // its directory
	Machine *Machine
	Hub     *Hub // nil without lighter

	options  Options
	tools    string
	path     []string // directories that are searched for programs before $PATH
	registry *process
	// router holds the network namespace of the link's end on the hub's side. If router is nil, the
	// link ends in the enclosure's namespace.
	router *process
	proxy  *link.Proxy // listens in the router's namespace; nil without Options.Delayed
	peer   *Peer       // see SetPeer
}

var sites atomic.Int64

// Start starts a site. The caller closes it.
func Start(ctx context.Context, options Options) (_ *Site, err error) {
	if enclosure == "" {
		return nil, errors.New("start a site: not in an enclosure; call site.Enclosed first")
	}
	work, err := workdir.Path()
	if err != nil {
		return nil, err
	}
	if options.Link == "" {
		options.Link = "1gbit"
	}
	s := &Site{Dir: filepath.Join(enclosure, fmt.Sprint(sites.Add(1))), options: options,
		tools: filepath.Join(work, Ours)}
	s.path = []string{filepath.Join(work, cmp.Or(options.Containerd, Ours)), s.tools}
	if options.Programs != "" {
		s.path = append(s.path, filepath.Join(work, options.Programs))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, tool := range []string{"containerd", "ctr", "registry"} {
		if _, err := os.Stat(filepath.Join(s.tools, tool)); err != nil {
			return nil, fmt.Errorf("find %s (test/setup tools builds it; LIGHTER_WORK selects another directory): %w",
				filepath.Join(s.tools, tool), err)
		}
	}
	for _, dir := range []string{"logs", "registry"} {
		if err := os.MkdirAll(filepath.Join(s.Dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	if s.Machine, err = s.newMachine(ctx); err != nil {
		return nil, err
	}
	if err := s.startRegistry(ctx); err != nil {
		return nil, err
	}
	if options.Lighter != "" {
		if err := s.startHub(ctx); err != nil {
			return nil, err
		}
	}
	return s, s.Machine.start(ctx)
}

// SetNodeArgs replaces Options.NodeArgs for nodes that are started from now on.
func (s *Site) SetNodeArgs(args ...string) { s.options.NodeArgs = args }

// SetConfig replaces Options.Config for containerds that are started from now on, except after
// RestartContainerd.
func (s *Site) SetConfig(text string) { s.options.Config = text }

// SetHubConfig replaces Options.HubConfig for hubs that are started from now on.
func (s *Site) SetHubConfig(text string) { s.options.HubConfig = text }

// SetHubArgs replaces Options.HubArgs for hubs that are started from now on.
func (s *Site) SetHubArgs(args ...string) { s.options.HubArgs = args }

// SetNode sets the binary of nodes that are started from now on; empty: Options.Lighter.
func (s *Site) SetNode(lighter string) { s.options.Node = lighter }

// SetHub sets the binary of hubs that are started from now on; empty: Options.Lighter.
func (s *Site) SetHub(lighter string) { s.options.Hub = lighter }

// Close stops all processes, the machine's first, and removes the site's directory. It returns an
// error for each process, mount and loop device that is left.
func (s *Site) Close() error {
	var errs []error
	if s.Machine != nil {
		errs = append(errs, s.Machine.close())
	}
	errs = append(errs, s.Hub.Close(), s.registry.stop(), s.closeLink(), unmountBelow(filepath.Join(s.Dir, "registry")))
	left, err := s.leftovers()
	errs = append(errs, err)
	for _, what := range left {
		errs = append(errs, fmt.Errorf("the site left behind %s", what))
	}
	return errors.Join(append(errs, unmountBelow(s.Dir), os.RemoveAll(s.Dir))...)
}

func (s *Site) startRegistry(ctx context.Context) error {
	dir := filepath.Join(s.Dir, "registry")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs for the registry: %w", err)
	}
	config := filepath.Join(s.Dir, "registry.yml")
	text := fmt.Sprintf(`version: 0.1
log: {level: warn}
storage: {filesystem: {rootdirectory: %s}}
http: {addr: %q}
`, dir, registryURL)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	var err error
	// Without this variable, the registry tries to connect to an OpenTelemetry collector.
	s.registry, err = s.startProcess("registry", []string{filepath.Join(s.tools, "registry"), "serve", config},
		"OTEL_TRACES_EXPORTER=none")
	if err != nil {
		return err
	}
	return s.registry.await(ctx, dial("tcp", registryURL))
}

// StopRegistry stops the registry for good.
func (s *Site) StopRegistry() error { return s.registry.stop() }

// BlobFile returns the path of the file in which the registry keeps a blob.
func (s *Site) BlobFile(d digest.Digest) string {
	return filepath.Join(s.Dir, "registry/docker/registry/v2/blobs", d.Algorithm().String(), d.Encoded()[:2],
		d.Encoded(), "data")
}

// Reference returns the reference of an image that was pushed to the registry as NAME:latest.
func Reference(name string) string { return registryURL + "/" + name + ":latest" }

// Push copies the image with the tag latest in an OCI layout to the registry, as NAME:latest.
func (s *Site) Push(ctx context.Context, layout, name string) error {
	_, err := s.command(ctx, "skopeo", "copy", "--quiet", "--insecure-policy", "--preserve-digests",
		"--dest-tls-verify=false",
		"oci:"+layout+":latest", "docker://"+Reference(name))
	return err
}
