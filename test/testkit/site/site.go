package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/link"
)

// HubIP is the address on the hub's and the registry's side of the link. The
// addresses of a site are the same in every enclosure.
const HubIP = "10.64.0.1"

// SpareAddress is a second address beside the hub that the machine reaches over the
// link. Nobody listens there but StartSecondHub.
const SpareAddress = HubIP + ":" + secondHubPort

const (
	machineIP     = "10.64.0.2"
	registryPort  = "5000"
	hubPort       = "7070"
	secondHubPort = "7072"
	registryURL   = HubIP + ":" + registryPort
	hubAddress    = HubIP + ":" + hubPort
)

// Options say what a site consists of.
type Options struct {
	Lighter  string   // the lighter binary; empty: neither hub nor node
	Link     string   // rate of the link, both ways, as tc writes it; default: 1gbit
	Delayed  bool     // a proxy on the link gives it latency, as SetLink says; at first next to none
	HubArgs  []string // more flags for the hub
	NodeArgs []string // more flags for the node
	Hub      string   // another binary for the hub; empty: Lighter
	Node     string   // another binary for the node; empty: Lighter
	Hubs     []string // URLs of what the node asks; empty: the hub
	HubKey   string   // the key that the node pins; empty: the hub's
	// containerd says of no layer of which image it is, as it does unless it is told to, and
	// the node trusts chains.
	Unlabelled bool
	// Containerd is whose containerd the machine has: Ours (the default), or Debian.
	Containerd string
	// Config is containerd's configuration as an administrator has it, which this
	// package completes; empty: this package's own.
	Config   string
	RemapIDs bool   // the node maps owners into user namespaces, and containerd is told so
	NodeRoot string // the node's root; default: below the machine's directory
	Unpacks  int    // layers that containerd unpacks at once; default: 1
	// Isolated has containerd's namespaces share no content, so that what one has
	// pulled, another pulls over the link again.
	Isolated bool
}

// Site is a running site.
type Site struct {
	Dir     string // its directory
	Machine *Machine
	Hub     *Hub // nil without lighter

	options  Options
	tools    string
	path     []string // where programs are looked for first
	registry *process
	router   *process    // keeps the network namespace of the link's other end; nil: it ends in the enclosure's
	delay    *link.Proxy // what stands there
	peer     *Peer       // what SetPeer said
}

var sites atomic.Int64

// Start starts a site. The caller closes it, also on an error of something else.
func Start(ctx context.Context, options Options) (_ *Site, err error) {
	if enclosure == "" {
		return nil, errors.New("a site runs in an enclosure: call site.Enclosed first")
	}
	work, err := Work()
	if err != nil {
		return nil, err
	}
	if options.Link == "" {
		options.Link = "1gbit"
	}
	s := &Site{Dir: filepath.Join(enclosure, fmt.Sprint(sites.Add(1))), options: options, tools: filepath.Join(work, Ours)}
	s.path = []string{filepath.Join(work, cmp.Or(options.Containerd, Ours)), s.tools}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, tool := range []string{"containerd", "ctr", "registry"} {
		if _, err := os.Stat(filepath.Join(s.tools, tool)); err != nil {
			return nil, fmt.Errorf("%s has no %s: run test/setup tools, or say another place in LIGHTER_WORK: %w", s.tools, tool, err)
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
		if s.Hub, err = s.launchHub(ctx, "hub", hubAddress); err != nil {
			return nil, err
		}
	}
	return s, s.Machine.start(ctx)
}

// SetNodeArgs has nodes that are started from now on get these flags instead of
// Options.NodeArgs.
func (s *Site) SetNodeArgs(args ...string) { s.options.NodeArgs = args }

// SetNode makes nodes that are started from now on run this binary; empty: Options.Lighter.
func (s *Site) SetNode(lighter string) { s.options.Node = lighter }

// SetHub makes hubs that are started from now on run this binary; empty: Options.Lighter.
func (s *Site) SetHub(lighter string) { s.options.Hub = lighter }

// Close stops everything, the machine first, and removes the site's directory.
// What is then still running or mounted is an error.
func (s *Site) Close() error {
	var errs []error
	if s.Machine != nil {
		errs = append(errs, s.Machine.close())
	}
	errs = append(errs, s.Hub.Close(), s.registry.stop(), s.closeLink(), unmountBelow(filepath.Join(s.Dir, "registry")))
	left, err := s.left()
	errs = append(errs, err)
	for _, what := range left {
		errs = append(errs, fmt.Errorf("the site left behind: %s", what))
	}
	return errors.Join(append(errs, unmountBelow(s.Dir), os.RemoveAll(s.Dir))...)
}

func (s *Site) startRegistry(ctx context.Context) error {
	dir := filepath.Join(s.Dir, "registry")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs for the registry: %w", err)
	}
	config := filepath.Join(s.Dir, "registry.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: warn}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", dir, registryURL)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	var err error
	// It would look for a collector of traces otherwise.
	s.registry, err = s.startProcess("registry", []string{filepath.Join(s.tools, "registry"), "serve", config}, "OTEL_TRACES_EXPORTER=none")
	if err != nil {
		return err
	}
	return s.registry.await(ctx, dial("tcp", registryURL))
}

// Reference is the reference of an image that was pushed to the registry as NAME:latest.
func Reference(name string) string { return registryURL + "/" + name + ":latest" }

// Push copies an OCI layout (its tag latest) to the registry as NAME:latest.
func (s *Site) Push(ctx context.Context, layout, name string) error {
	_, err := s.command(ctx, "skopeo", "copy", "--quiet", "--insecure-policy", "--preserve-digests", "--dest-tls-verify=false",
		"oci:"+layout+":latest", "docker://"+Reference(name))
	return err
}
