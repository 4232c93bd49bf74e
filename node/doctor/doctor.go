// Package doctor examines a machine, and finds what keeps a node from working or images from being
// lazy. For each finding it gives the command or the lines of configuration that repair it. It
// examines kernel, permissions, disk, hub, containerd, Docker, and the node itself. It works
// without a running node, too. It also reports what it could not examine.
//
// It repairs nothing itself. It does not affect a running node or containers: it tries mounts in a
// mount namespace of its own, in a directory that it removes.
package doctor

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"lighter/bytesize"
	"lighter/node"
	"lighter/node/control"
	"lighter/node/report"
)

// Level is the severity of a finding.
type Level string

const (
	OK        Level = "ok"
	Warning   Level = "warning"   // the node works, but not well, or not for long
	Problem   Level = "problem"   // the node does not work, or images are not lazy
	Unchecked Level = "unchecked" // something could not be examined
)

// Finding is the result of one check.
type Finding struct {
	Area   string `json:"area"` // what was examined: an area of the table checks
	Level  Level  `json:"level"`
	What   string `json:"what"`             // one line
	Repair string `json:"repair,omitempty"` // a command, or lines of a configuration
}

// checks lists all checks, in the order of the report. Each check gathers facts about one thing,
// and selects findings from a table of rules.
var checks = []struct {
	area  string
	check func(*machine, context.Context) []Finding
}{
	{"kernel", (*machine).trialMounts},
	{"root", (*machine).user},
	{"root", (*machine).directory},
	{"root", (*machine).securityModules},
	{"disk", (*machine).disk},
	{"hub", (*machine).hubs},
	{"node", (*machine).node},
	{"node", (*machine).removal},
	{"cache", (*machine).cache},
	{"containerd", (*machine).nodeSocket},
	{"containerd", (*machine).containerd},
	{"docker", (*machine).docker},
}

// rule is one possible finding.
type rule struct {
	holds  bool // whether it is a finding on this machine
	level  Level
	what   string
	repair string
}

func (r rule) finding() Finding { return Finding{Level: r.level, What: r.what, Repair: r.repair} }

// first returns the finding of the first rule that holds.
func first(rules []rule) []Finding {
	for _, r := range rules {
		if r.holds {
			return []Finding{r.finding()}
		}
	}
	return nil
}

// all returns the findings of all rules that hold. If no rule holds, it returns an OK finding with
// the text otherwise, or nothing if that text is empty.
func all(otherwise string, rules []rule) (found []Finding) {
	for _, r := range rules {
		if r.holds {
			found = append(found, r.finding())
		}
	}
	if found == nil && otherwise != "" {
		return []Finding{{Level: OK, What: otherwise}}
	}
	return found
}

// unchecked returns the finding that something could not be examined.
func unchecked(what, repair string) []Finding {
	return []Finding{{Level: Unchecked, What: what, Repair: repair}}
}

// asRoot is the repair for checks that only root can make.
const asRoot = "sudo lighter doctor"

// timeout bounds each wait for another process.
const timeout = 10 * time.Second

// Run makes all checks. config is the configuration of the node. If a node runs, the settings that
// it reports replace those in config.
func Run(ctx context.Context, config node.Config) (found []Finding) {
	m := &machine{config: config, system: "/"}
	m.askNode(ctx)
	for _, c := range checks {
		for _, finding := range c.check(m, ctx) {
			finding.Area = c.area
			found = append(found, finding)
		}
	}
	return found
}

// Effective returns the configuration of a node, with the settings that the running node reports.
func Effective(ctx context.Context, config node.Config) node.Config {
	m := &machine{config: config}
	m.askNode(ctx)
	return m.config
}

// machine is the machine that is examined, with the settings of its node.
type machine struct {
	config   node.Config
	system   string         // the directory of /proc, /sys and /lib; "/" except in tests
	status   *report.Status // of the running node; nil: no node runs, or it does not answer
	noStatus error          // why the node does not answer
}

// askNode asks the running node for its state. The node's settings replace those of the
// configuration, because the node may not have read that configuration.
func (m *machine) askNode(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	status, err := control.New(m.config.Root).Status(ctx)
	if err != nil {
		m.noStatus = err
		return
	}
	m.useStatus(&status)
}

// useStatus replaces configured settings by those that the running node reports.
func (m *machine) useStatus(s *report.Status) {
	m.status = s
	c := &m.config
	c.Root, c.Address, c.MountMode, c.RemapIDs = s.Root, s.Address, s.MountMode, s.RemapIDs
	c.CacheSize, c.Trust = bytesize.Size(s.Cache.Limit), node.Trust(s.Trust.Trust)
	c.Hubs, c.Domain, c.CAFile = nil, s.Domain, s.CAFile
	c.PlainHTTP = true // the running node has accepted the URLs of its hubs
	for _, h := range s.Hubs {
		c.Hubs = append(c.Hubs, h.URL)
	}
	if len(s.HubKeys) > 0 {
		c.HubKeys = s.HubKeys
	}
	if s.ImageStore != nil {
		c.ImageStore = s.ImageStore.Dir
	}
	if s.Directory != nil {
		c.Directory = s.Directory.Dir
	}
}

// path returns the path of a file of the system.
func (m *machine) path(name string) string { return filepath.Join(m.system, name) }

// matches reports whether a file of the system can be read and matches a regular expression.
func (m *machine) matches(name, pattern string) bool {
	text, err := os.ReadFile(m.path(name))
	return err == nil && regexp.MustCompile(pattern).Match(text)
}
