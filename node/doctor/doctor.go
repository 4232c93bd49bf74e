// Package doctor promises a diagnosis: what on a machine keeps a node from working, or images from
// being lazy, and for each finding the command or the lines of configuration that repair it. It
// examines kernel, permissions, disk, hub, containerd, and the node itself, whether it runs or not,
// and reports what it could not examine.
//
// It repairs nothing itself. It tries mounts in a mount namespace of its own and in a directory
// that it removes, so a running node and containers are not affected.
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

// Level is the severity of a finding.
type Level string

const (
	OK        Level = "ok"
	Warning   Level = "warning"   // it works, but not well, or not for long
	Problem   Level = "problem"   // it does not work, or images are not lazy
	Unchecked Level = "unchecked" // it could not be examined
)

// Finding is the result of one examination.
type Finding struct {
	Area  string `json:"area"` // kernel, root, disk, hub, node, cache, containerd
	Level Level  `json:"level"`
	What  string `json:"what"`           // one line
	Mend  string `json:"mend,omitempty"` // how to repair it: a command, or lines of a configuration
}

// Options say what is examined.
type Options struct {
	// Config is the node's. The settings that a running node reports replace it.
	Config node.Config
	// Containerd is the path of containerd's socket.
	Containerd string
}

// timeout bounds each wait for another process.
const timeout = 10 * time.Second

// Run examines everything.
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

// Worst returns the worst level of the findings.
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

// doctor is one examination of a machine.
type doctor struct {
	config   node.Config
	system   string         // the directory of /proc, /sys and /lib; "/" except in tests
	status   *report.Status // of the running node; nil: none runs, or it does not answer
	asked    error          // why the node does not answer
	findings []Finding
}

func (d *doctor) add(area string, level Level, what, mend string) {
	d.findings = append(d.findings, Finding{Area: area, Level: level, What: what, Mend: mend})
}

// askNode asks the running node. Its answer counts more than a configuration that it may not have
// read.
func (d *doctor) askNode(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	status, err := control.New(d.config.Root).Status(ctx)
	if err != nil {
		d.asked = err
		return
	}
	d.useStatus(&status)
}

// useStatus replaces configured settings by those that the running node reports.
func (d *doctor) useStatus(s *report.Status) {
	d.status = s
	d.config.Root, d.config.Address, d.config.MountMode, d.config.RemapIDs = s.Root, s.Address, s.MountMode, s.RemapIDs
	d.config.CacheSize = node.Size(s.Cache.Limit)
	if s.Trust.Trust != "" { // an older version does not report it
		d.config.Trust = node.Trust(s.Trust.Trust)
	}
	d.config.Hubs, d.config.Scope, d.config.CAFile = nil, s.Scope, s.CAFile
	d.config.PlainHTTP = true // it would not run with hubs that it may not use
	for _, h := range s.Hubs {
		d.config.Hubs = append(d.config.Hubs, h.URL)
	}
	if len(s.HubKeys) > 0 {
		d.config.HubKeys = s.HubKeys
	}
}

// lookAtNode examines the node itself.
func (d *doctor) lookAtNode() {
	const area = "node"
	switch {
	case errors.Is(d.asked, control.ErrNoDaemon):
		d.lookAtAbsence()
		return
	case d.asked != nil:
		d.add(area, Unchecked, "the node does not answer: "+d.asked.Error(), "")
		return
	}
	s := d.status
	if mine := report.Version(); mine != s.Version {
		d.add(area, Warning, "the running node is version "+s.Version+", and this program is "+mine,
			"restart the node: containers continue meanwhile")
	} else {
		d.add(area, OK, "it runs since "+s.Started.Local().Format(time.DateTime)+", version "+s.Version, "")
	}
	if s.NotLazy != "" {
		d.add(area, Problem, "no image is lazy: "+s.NotLazy,
			"see the findings about the kernel above, and set mount_mode = \"auto\"; then restart the node")
	}
	if s.Keeper.Error != "" {
		d.add(area, Problem, "no keeper holds the devices, containers get errors when this node ends: "+s.Keeper.Error,
			"restart the node when no container uses it")
	}
	if s.NoMetrics != "" {
		d.add(area, Warning, "metrics, health and readiness are not available: "+s.NoMetrics,
			"another http_address; then restart the node")
	}
	for _, lost := range s.Lost {
		image := cmp.Or(strings.Join(lost.Images, ", "), "an image without a name")
		d.add(area, Problem, "tree "+lost.Tree.Short()+" of "+image+" is broken: "+lost.Cause,
			"ctr images rm --sync IMAGE, and pull it again (its chains: lighter status)")
	}
	for _, refused := range s.Refused {
		image := cmp.Or(strings.Join(refused.Images, ", "), "chain "+refused.Chain)
		d.add(area, Problem, "the statement of "+image+" is refused: its tree is served, but no new pull uses it: "+refused.Cause,
			refused.Mend)
	}
	for _, left := range s.Leftovers {
		d.add(area, Warning, left.Path+" could not be cleaned up: "+left.Cause,
			"df -h "+s.Root+"; lsattr -d "+left.Path+"; then restart the node")
	}
	for _, bind := range s.Binds {
		if bind.Lost != "" {
			d.add(area, Problem, "image "+bind.Name+" is not mounted at "+bind.Dir+" any more: "+bind.Lost,
				"lighter unmount "+bind.Dir+", and mount it again")
		}
	}
	for _, image := range s.Images {
		if !image.Lazy && image.Image != "" {
			d.add(area, Warning, "image "+image.Image+" is not lazy: "+image.Why,
				"lighter add docker://"+image.Image+", then remove the image here and pull it again")
		}
	}
}

// lookAtAbsence reports that no node runs: containers may wait for it.
func (d *doctor) lookAtAbsence() {
	const area = "node"
	mend := "lighter node --root " + d.config.Root
	connection, err := mount.Connection(d.config.Root)
	if err == nil && connection != "" {
		d.add(area, Problem, "no node runs, and reads of its containers wait for it", mend)
		return
	}
	d.add(area, Problem, "no node runs with root "+d.config.Root, mend)
}
