// Package kubernetes makes a machine that is a node of a Kubernetes cluster use Lighter, and undoes
// it. It installs the program, the node's service (package systemd), and the configuration of the
// kubelet's containerd (package containerd), in the layouts of kubeadm, k3s, RKE2 and k0s.
//
// Install may be repeated, and may be killed at any moment, for example because it restarts the
// containerd that runs it: the next run completes what is missing, and restarts only what has not
// read its files yet. If a service does not come back, it gets its previous configuration, and the
// same installation is not tried again: the machine remembers why.
//
// One operation at a time changes the machine. Another one waits for a minute, and its error names
// the one that it has waited for.
//
// Removing is done in two steps, because containerd cannot remove a container without its
// snapshotter. Withdraw makes the kubelet's pulls use the previous snapshotter; the service stays
// for the containers that use it. Remove takes everything away, and refuses while there are any.
//
// Package agent runs this from a pod.
package kubernetes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"lighter/deploy"
	"lighter/durable"
	"lighter/install"
	"lighter/install/containerd"
	"lighter/install/systemd"
	"lighter/node"
	"lighter/node/control"
	"lighter/proc"
)

// Host is the machine.
type Host struct {
	Machine install.Machine
	Program string // the binary to install
	Socket  string // containerd's; empty: that of the distribution that is found
	Config  []byte // the node's configuration
	CRI     bool   // the kubelet's pulls use the node
	Root    string // of a removal: the node's directory, when its configuration is gone
	// Again says that the machine had everything. Install then restarts containerd only if lines of
	// its configuration were lost, and starts the node's service instead of restarting it.
	Again bool
	// Decode reads a configuration of a node, and checks it.
	Decode func(text []byte) (node.Config, error)
}

// Result says what an operation found and did.
type Result struct {
	Distribution string   `json:"distribution"`
	Root         string   `json:"root"`    // the node's directory, without symbolic links
	Program      string   `json:"program"` // the path of the installed program
	Done         []string `json:"done"`    // in words for an operator
	Notes        []string `json:"notes"`
	Users        []string `json:"users"` // what uses the node's snapshots
	Error        string   `json:"error,omitempty"`
	RolledBack   bool     `json:"rolledBack,omitempty"` // the machine is as it was before
}

// add adds what a plan did.
func (r *Result) add(report install.Report) {
	for _, f := range report.Files {
		r.Done = append(r.Done, f.Action+" "+f.Path)
	}
	r.Done, r.Notes = append(r.Done, report.Done...), append(r.Notes, report.Notes...)
	r.Notes = append(r.Notes, report.Next...)
}

// Fail adds an error to the result.
func (r *Result) Fail(err error) {
	back := (*install.RolledBack)(nil)
	r.Error, r.RolledBack = err.Error(), errors.As(err, &back)
}

// Install installs the program, the service, and the configuration of containerd.
func (h *Host) Install(ctx context.Context) (r Result, err error) {
	if _, err := h.Decode(h.Config); err != nil {
		return r, fmt.Errorf("the node's configuration: %w", err)
	}
	if !h.Machine.RunsSystemd() {
		return r, errors.New("systemd does not run on this machine (/run/systemd/system does not exist): " +
			"Lighter cannot be installed by a pod here")
	}
	unlock, err := h.lock(ctx, "an installation")
	if err != nil {
		return r, err
	}
	defer unlock()
	return r, h.install(ctx, &r)
}

// install installs Lighter while the machine is locked.
func (h *Host) install(ctx context.Context, r *Result) error {
	d, err := h.find(ctx)
	if err != nil {
		return err
	}
	r.Distribution = d.Name
	program, err := h.publish()
	if err != nil {
		return fmt.Errorf("install the program: %w", err)
	}
	attempt := fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %s %t %s", filepath.Base(program), d.version,
		h.CRI, h.Config)))
	if err := h.failedBefore(attempt); err != nil {
		return err
	}
	if err := h.stopRemoval(ctx, r); err != nil {
		return err
	}
	err = h.installService(ctx, d, program, r)
	if err == nil {
		err = h.installContainerd(ctx, d, r)
	}
	if back := (*install.RolledBack)(nil); errors.As(err, &back) {
		return errors.Join(err, h.remember(attempt, err))
	}
	if err != nil {
		return err
	}
	r.Program = program
	return h.settle(program)
}

// installService installs the node's service. It is restarted only if it has not read its files.
func (h *Host) installService(ctx context.Context, d distribution, program string, r *Result) error {
	config, err := h.Decode(h.Config)
	if err != nil {
		return err
	}
	t := &systemd.Target{Machine: h.Machine, Program: program, Root: h.Machine.Path(config.Root),
		Node: systemd.Service{Config: deploy.NodeConfig, Text: h.text(d), Replace: true}}
	p, err := t.Install(ctx)
	if err != nil {
		return err
	}
	config, err = h.config()
	if err != nil {
		return err
	}
	p.Restart.Due = !h.serves(ctx, config, h.Machine.Path(unitFile), h.Machine.Path(deploy.NodeConfig))
	switch {
	case len(p.Changes) > 0:
	case !p.Restart.Due:
		p.After = nil // an earlier run has come this far
	case h.Again: // it may be starting
		p.After, p.Restart.Due = []install.Step{h.Machine.Systemctl("start", filepath.Base(unitFile))}, false
	}
	report, err := h.Machine.Apply(ctx, p, install.Options{Restart: true})
	r.add(report)
	return err
}

// text returns the configuration for this machine. If the operator leaves containerd's socket at
// its default, the node gets that of the distribution.
func (h *Host) text(d distribution) []byte {
	config, err := h.Decode(h.Config)
	if err != nil || config.Containerd != node.DefaultConfig().Containerd || d.path == config.Containerd {
		return h.Config
	}
	text := fmt.Appendf(nil, "%s\n# Added by lighter install kubernetes: the socket of %s.\ncontainerd = '%s'\n",
		h.Config, d.Name, d.path)
	if _, err := h.Decode(text); err != nil {
		return h.Config // the operator has set the default
	}
	return text
}

// unitFile is the unit of the node's service.
const unitFile = "/etc/systemd/system/lighter-node.service"

// config returns the configuration that the node's service has: an administrator's file is never
// replaced. Without any, it is the default one.
func (h *Host) config() (node.Config, error) {
	text, err := os.ReadFile(h.Machine.Path(deploy.NodeConfig))
	if errors.Is(err, fs.ErrNotExist) {
		text, err = h.Config, nil
	}
	if err != nil {
		return node.Config{}, err
	}
	if text == nil { // a removal has come this far, or the installation has not
		config := node.DefaultConfig()
		config.Root = cmp.Or(h.Root, config.Root)
		return config, nil
	}
	config, err := h.Decode(text)
	if err != nil {
		return config, fmt.Errorf("%s: %w", deploy.NodeConfig, err)
	}
	return config, nil
}

// serves reports whether a node runs that was started after the files were written.
func (h *Host) serves(ctx context.Context, config node.Config, files ...string) bool {
	pid, err := proc.Listener(ctx, control.Socket(h.Machine.Path(config.Root)))
	return err == nil && pid != 0 && !proc.StartedBefore(pid, files...)
}

// containerd returns the target for the kubelet's containerd.
func (h *Host) containerd(d distribution) (*containerd.Target, error) {
	config, err := h.config()
	if err != nil {
		return nil, err
	}
	if config.Address == "" {
		return nil, fmt.Errorf("%s: the node has no address for containerd", deploy.NodeConfig)
	}
	config.Containerd = d.socket
	return &containerd.Target{Machine: h.Machine, Config: d.config, Node: config, CRI: h.CRI, Again: h.Again,
		Owner: d.owner}, nil
}

// installContainerd makes containerd use the node.
func (h *Host) installContainerd(ctx context.Context, d distribution, r *Result) error {
	t, err := h.containerd(d)
	if err != nil {
		return err
	}
	r.Root = node.RealRoot(t.Node.Root)
	p, err := t.Install(ctx)
	if err != nil {
		return err
	}
	report, err := h.Machine.Apply(ctx, p, install.Options{Restart: true})
	r.add(report)
	return err
}

// failure is what the machine remembers about an installation that was rolled back.
type failure struct {
	Attempt string `json:"attempt"` // digest of what was to be installed
	Why     string `json:"why"`
}

// failedBefore returns an error if the same installation was rolled back before.
func (h *Host) failedBefore(attempt string) error {
	var f failure
	text, err := os.ReadFile(h.Machine.Path(failureFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil || f.Attempt != attempt {
		return nil // another program or configuration, or a file that says nothing
	}
	return &install.RolledBack{What: "the installation", Cause: fmt.Errorf(
		"%s (it is tried again with another release or configuration, or after: rm %s)", f.Why, failureFile)}
}

// remember makes the machine remember that an installation was rolled back.
func (h *Host) remember(attempt string, cause error) error {
	text, err := json.Marshal(failure{attempt, cause.Error()})
	if err != nil {
		return err
	}
	return durable.Replace(h.Machine.Path(failureFile), text)
}

// forget forgets failures of earlier installations.
func (h *Host) forget() error {
	err := os.Remove(h.Machine.Path(failureFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, durable.SyncDir(filepath.Dir(h.Machine.Path(failureFile))))
}
