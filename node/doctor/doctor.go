// Package doctor promises to say what on a machine keeps a node from working, or
// from being lazy, and for each finding the command or the lines of configuration
// that mend it: kernel, permissions, disk, hub, containerd, and the node itself,
// whether it runs or not. What could not be looked at is said too.
//
// It refuses to mend anything itself. What it tries, it tries in a mount namespace
// of its own and in a directory that it removes, so a running node and containers
// see nothing of it.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"lighter/node"
	"lighter/node/control"
	"lighter/node/mount"
	"lighter/node/report"
)

// Level says how bad a finding is.
type Level string

const (
	OK        Level = "ok"
	Warning   Level = "warning"   // it works, but not as well as it could, or not for long
	Problem   Level = "problem"   // it does not work, or images are not lazy
	Unchecked Level = "unchecked" // What says why it could not be looked at
)

// Finding is one thing that was looked at.
type Finding struct {
	Area  string `json:"area"` // kernel, root, disk, hub, node, cache, containerd
	Level Level  `json:"level"`
	What  string `json:"what"`           // in one line
	Mend  string `json:"mend,omitempty"` // a command, or lines of a configuration
}

// Options say what is to be looked at.
type Options struct {
	// Config is the node's. Of a node that runs, what it says itself counts more.
	Config node.Config
	// Containerd is the path of containerd's socket.
	Containerd string
}

// patience bounds each step that waits for somebody else.
const patience = 10 * time.Second

// Run looks at everything.
func Run(ctx context.Context, o Options) []Finding {
	d := &doctor{config: o.Config, system: "/"}
	d.askNode(ctx)
	d.lookAtKernel()
	d.lookAtRoot()
	d.lookAtDisk()
	d.lookAtHubs(ctx)
	d.lookAtNode()
	if d.status != nil {
		d.judgeCache(d.status.Cache, d.status.Started)
	}
	d.lookAtContainerd(ctx, o.Containerd)
	return d.findings
}

// Worst returns the worst level of findings that were made.
func Worst(findings []Finding) Level {
	order := []Level{OK, Unchecked, Warning, Problem}
	worst := OK
	for _, f := range findings {
		if slices.Index(order, f.Level) > slices.Index(order, worst) {
			worst = f.Level
		}
	}
	return worst
}

// doctor is one look at a machine.
type doctor struct {
	config   node.Config
	system   string         // where /proc, /sys and /lib are; "/" but in tests
	status   *report.Status // of the node that runs; nil: none does, or it does not say
	asked    error          // why it does not say
	findings []Finding
}

func (d *doctor) add(area string, level Level, what, mend string) {
	d.findings = append(d.findings, Finding{Area: area, Level: level, What: what, Mend: mend})
}

// askNode asks the node that runs, whose word counts more than a configuration
// that it may not have read.
func (d *doctor) askNode(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	status, err := control.New(d.config.Root).Status(ctx)
	if err != nil {
		d.asked = err
		return
	}
	d.believe(&status)
}

// believe puts what a node says of itself in the place of what is configured.
func (d *doctor) believe(s *report.Status) {
	d.status = s
	d.config.Root, d.config.Address, d.config.MountMode, d.config.RemapIDs = s.Root, s.Address, s.MountMode, s.RemapIDs
	d.config.CacheSize = node.Size(s.Cache.Limit)
	if s.Trust.Trust != "" { // one of a version before does not say it
		d.config.Trust = node.Trust(s.Trust.Trust)
	}
	d.config.Hubs, d.config.Scope, d.config.CAFile = nil, s.Scope, s.CAFile
	d.config.PlainHTTP = true // it would not run with hubs that it may not ask
	for _, h := range s.Hubs {
		d.config.Hubs = append(d.config.Hubs, h.URL)
	}
	if len(s.HubKeys) > 0 {
		d.config.HubKeys = s.HubKeys
	}
}

// lookAtNode says how the node itself is.
func (d *doctor) lookAtNode() {
	const area = "node"
	switch {
	case errors.Is(d.asked, control.ErrNoDaemon):
		d.lookAtAbsence()
		return
	case d.asked != nil:
		d.add(area, Unchecked, "the node does not say how it is: "+d.asked.Error(), "")
		return
	}
	s := d.status
	if mine := report.Version(); mine != s.Version {
		d.add(area, Warning, "the node that runs is version "+s.Version+", and this program is "+mine, "restart the node: containers go on meanwhile")
	} else {
		d.add(area, OK, "it runs since "+s.Started.Local().Format(time.DateTime)+", version "+s.Version, "")
	}
	if s.NotLazy != "" {
		d.add(area, Problem, "no image is lazy: "+s.NotLazy, "what is said of the kernel above, and mount_mode = \"auto\"; then restart the node")
	}
	if s.Keeper.Error != "" {
		d.add(area, Problem, "nobody keeps the devices, containers get errors when this node ends: "+s.Keeper.Error, "restart it when no container uses it")
	}
	if s.NoMetrics != "" {
		d.add(area, Warning, "nobody can ask for metrics, health or readiness: "+s.NoMetrics, "another http_address; then restart the node")
	}
	for _, lost := range s.Lost {
		d.add(area, Problem, "tree "+lost.Tree.Short()+" of "+cmp.Or(strings.Join(lost.Images, ", "), "an image without a name")+" is broken: "+lost.Cause,
			"ctr images rm --sync IMAGE, and pull it again (its chains: lighter status)")
	}
	for _, refused := range s.Refused {
		d.add(area, Problem, "the statement of "+cmp.Or(strings.Join(refused.Images, ", "), "chain "+refused.Chain)+" is refused: its tree is served, but no new pull uses it: "+refused.Cause, refused.Mend)
	}
	for _, left := range s.Leftovers {
		d.add(area, Warning, left.Path+" could not be put in order: "+left.Cause, "df -h "+s.Root+"; lsattr -d "+left.Path+"; then restart the node")
	}
	for _, bind := range s.Binds {
		if bind.Lost != "" {
			d.add(area, Problem, "image "+bind.Name+" is not mounted at "+bind.Dir+" any more: "+bind.Lost, "lighter unmount "+bind.Dir+", and mount it again")
		}
	}
	for _, image := range s.Images {
		if !image.Lazy && image.Image != "" {
			d.add(area, Warning, "image "+image.Image+" is not lazy: "+image.Why, "lighter add docker://"+image.Image+", then remove the image here and pull it again")
		}
	}
}

// lookAtAbsence says what it means that no node runs: containers may wait for it.
func (d *doctor) lookAtAbsence() {
	const area = "node"
	mend := "lighter node --root " + d.config.Root
	connection, err := mount.Connection(d.config.Root)
	if err == nil && connection != "" {
		d.add(area, Problem, "no node runs, and containers that were started with one wait for it with what they read", mend)
		return
	}
	d.add(area, Problem, "no node runs with root "+d.config.Root, mend)
}
