// Package containerd makes containerd on this machine use a node as a snapshotter, and undoes it.
//
// It edits containerd's configuration file in place (package tomltext), or writes a file of its own
// where containerd merges such files: containerd 2.0 and later with a pattern in imports. Earlier
// versions replace a whole plugin's section by the one of an imported file, so the user's settings
// would be lost. The kubelet's pulls (CRI) keep their snapshotter unless the user asks: a change of
// it concerns every pod of the machine.
//
// The new configuration is parsed by containerd itself, and judged by package doctor, before
// containerd can read it. A setting that would have no effect is refused: one that an imported file
// overrides, for example.
package containerd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"lighter/install"
	"lighter/install/marks"
	"lighter/install/pullthrough"
	"lighter/install/tomlfile"
	"lighter/install/tomltext"
	"lighter/node"
	"lighter/node/doctor"
)

// Target is the containerd of this machine.
type Target struct {
	Machine install.Machine
	Config  string          // its configuration; empty: the file that the running containerd has read
	Node    node.Config     // of the node; it may name no socket of containerd
	CRI     bool            // the kubelet's pulls use the node, too
	Differ  bool            // containerd asks the node for the layers of commits first
	Owner   Owner           // the program that writes containerd's configuration, if one does
	Force   bool            // uninstall although containers use the node
	Hub     pullthrough.Hub // which is asked before registries
	Hosts   string          // the directory with the files hosts.toml; empty: they are not changed
	Again   bool            // it was installed before: what others have changed does not need a restart
}

// socket returns the socket on which containerd listens. A node without one makes no layers of
// containers' changes, but still serves containerd.
func (t *Target) socket() string { return cmp.Or(t.Node.Containerd, node.DefaultConfig().Containerd) }

var marker = marks.Marker{Target: "containerd"}

// defaultUnit is the unit of a containerd whose process is not visible.
const defaultUnit = "containerd.service"

// timeout bounds each wait for a program.
const timeout = 30 * time.Second

// found is the containerd that was found.
type found struct {
	doctor.Containerd
	number int // 204: version 2.4
}

// find finds containerd.
func (t *Target) find(ctx context.Context) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := doctor.FindContainerd(ctx, t.socket())
	switch {
	case errors.Is(err, fs.ErrPermission):
		return found{}, fmt.Errorf("only root may use %s: run this as root (try sudo)", t.socket())
	case c.Running && err != nil:
		return found{}, err
	}
	if t.Config != "" {
		c.Config = t.Config
	}
	if !c.Running {
		if c.Program, err = exec.LookPath(c.Program); err != nil {
			return found{}, fmt.Errorf("find containerd: nothing listens on %s (--containerd SOCKET), and %w",
				t.socket(), err)
		}
		out, err := exec.CommandContext(ctx, c.Program, "--version").Output()
		if err != nil {
			return found{}, fmt.Errorf("%s --version: %w", c.Program, err)
		}
		c.Version = version(string(out))
	}
	f := found{Containerd: c, number: doctor.Release(c.Version)}
	if f.number < 1_06 {
		return found{}, fmt.Errorf("containerd %s is too old, or its version is unknown: Lighter needs 1.6 or later",
			c.Version)
	}
	return f, nil
}

// release matches a version as `containerd --version` prints it, with or without a "v".
var releasePattern = regexp.MustCompile(`\sv?(\d+\.\d+\.\d+\S*)`)

// version returns the version in the output of `containerd --version`.
func version(out string) string {
	if m := releasePattern.FindStringSubmatch(out); m != nil {
		return "v" + m[1]
	}
	return ""
}

// facts says what was found.
func (f found) facts(config string) []string {
	state := "not running"
	if f.Running {
		state = "running"
		if f.PID != 0 {
			state = fmt.Sprintf("running, process %d", f.PID)
		}
	}
	return []string{"containerd " + f.Version + " (" + state + ")", "its configuration: " + config}
}

// Install plans the configuration of containerd.
func (t *Target) Install(ctx context.Context) (*install.Plan, error) {
	f, err := t.find(ctx)
	if err != nil {
		return nil, err
	}
	l, err := t.read(f)
	if err != nil {
		return nil, install.ByHand(err, t.byHand(f))
	}
	w := l.wanted(t, f)
	if l.template != nil {
		w.cri = false // the owner's settings say that: its own lines have the table already
	}
	lines := tomltext.Lines(w.settings(), w.elements())
	changes, err := l.install(w)
	if err != nil {
		return nil, install.ByHand(err, lines)
	}
	through, err := t.pullThrough(t.Hub)
	if err != nil {
		return nil, err
	}
	p := t.plan(f, l, append(changes, through...))
	p.Notes = w.notes()
	if t.Hub.URL != "" {
		p.Notes = append(p.Notes, "pulls by CRI (the kubelet) ask the hub if config_path of containerd's CRI plugin "+
			"names "+t.Hosts+"; ctr does with --hosts-dir "+t.Hosts)
	}
	if f.Program == "" && len(changes) > 0 {
		p.Notes = append(p.Notes, "containerd is a part of another program, and has not checked the new configuration")
	}
	p.Restart.Fallback = l.uninstall()
	p.Check = func(ctx context.Context, staged map[string]string) error {
		return t.check(ctx, f, l, w, staged)
	}
	p.Restart.Due = f.PID != 0 && (!f.has() || !t.Again && (f.Snapshotters[snapshotter] != "" || l.newerThan(f.PID)))
	p.Restart.Verify = t.await(func(c doctor.Containerd) error {
		switch why, loaded := c.Snapshotters[snapshotter]; {
		case !loaded:
			return errors.New("it has no snapshotter " + snapshotter)
		case why != "":
			return fmt.Errorf("its snapshotter %s: %s", snapshotter, why)
		}
		return nil
	})
	return p, nil
}

// has reports whether the running containerd has loaded the snapshotter.
func (f found) has() bool {
	_, loaded := f.Snapshotters[snapshotter]
	return loaded
}

// Uninstall plans the configuration of containerd without the lines of Install.
func (t *Target) Uninstall(ctx context.Context) (*install.Plan, error) {
	f, err := t.find(ctx)
	if err != nil {
		return nil, err
	}
	if !t.Force {
		if err := install.InUse(ctx, t.Node.Root); err != nil {
			return nil, err
		}
	}
	l, err := t.read(f)
	if err != nil {
		return nil, err
	}
	through, err := t.pullThrough(pullthrough.Hub{})
	if err != nil {
		return nil, err
	}
	p := t.plan(f, l, append(l.uninstall(), through...))
	if l.proxy() {
		p.Notes = append(p.Notes, l.main.Path+" has a proxy plugin "+snapshotter+
			" that lighter install did not write: it stays")
	}
	p.Restart.Due = !l.proxy() && f.has()
	p.Restart.Verify = t.await(func(c doctor.Containerd) error {
		if _, loaded := c.Snapshotters[snapshotter]; loaded && !l.proxy() {
			return errors.New("it still has a snapshotter " + snapshotter)
		}
		return nil
	})
	return p, nil
}

// pullThrough returns the changes to the files hosts.toml.
func (t *Target) pullThrough(hub pullthrough.Hub) ([]install.Change, error) {
	if t.Hosts == "" {
		return nil, nil
	}
	return hub.Containerd(t.Machine.Path(t.Hosts))
}

// plan returns what both plans have in common.
func (t *Target) plan(f found, l *layout, changes []install.Change) *install.Plan {
	p := &install.Plan{Target: "containerd", Found: f.facts(l.main.Path), Changes: changes}
	if f.Running {
		p.Restart = t.Machine.RestartOf("containerd", f.PID, defaultUnit)
	}
	return p
}

// byHand returns the lines for a configuration that cannot be read.
func (t *Target) byHand(f found) string {
	l := &layout{main: config{File: tomlfile.File{Doc: new(tomltext.Document)}}}
	w := l.wanted(t, f)
	return tomltext.Lines(w.settings(), w.elements())
}

// comeBack bounds the wait until a restarted containerd answers.
const comeBack = time.Minute

// await returns a function that waits until the running containerd is right.
func (t *Target) await(right func(doctor.Containerd) error) func(context.Context) error {
	return func(ctx context.Context) error {
		return install.Await(ctx, comeBack, func(ctx context.Context) error {
			c, err := doctor.FindContainerd(ctx, t.socket())
			if err != nil {
				return err
			}
			return right(c)
		})
	}
}

// check parses the new configuration with containerd's own parser, and judges the result.
func (t *Target) check(ctx context.Context, f found, l *layout, w wanted, staged map[string]string) error {
	if f.Program == "" {
		return nil // containerd is a part of another program, which has to be asked otherwise
	}
	config, remove, err := l.candidate(staged)
	if err != nil {
		return err
	}
	defer remove()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.Program, "--config", config, "config", "dump")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	dump, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("containerd config dump: %w: %s", err, install.LastLine(stderr.Bytes()))
	}
	findings, err := doctor.JudgeContainerd(dump, f.Version, t.Node)
	if err != nil {
		return err
	}
	for _, finding := range findings {
		if finding.Level == doctor.Problem {
			return errors.New("with it, " + finding.What)
		}
	}
	uses := func(what string) bool {
		return slices.ContainsFunc(findings, func(f doctor.Finding) bool { return strings.HasPrefix(f.What, what) })
	}
	switch {
	case w.cri && !uses(doctor.CRIUses):
		return errors.New("with it, the kubelet's pulls still use another snapshotter: " +
			"a setting of another file or section overrides it")
	case w.differ && !uses(doctor.DifferUses):
		return errors.New("with it, containerd still asks its own differ first: " +
			"a list of differs in another file comes before the node's")
	}
	return nil
}
