// Package buildkit makes a buildkitd on this machine build on lazy images, and undoes it.
//
// It sets two keys of buildkitd's configuration (package tomltext): the name and the socket of the
// snapshotter of its OCI worker. Where systemd runs, it also makes the service start after the
// node's, because buildkitd looks for the socket when it starts.
//
// buildkitd has no command that checks a configuration, and it must not be started to check one: a
// second buildkitd would delete the first one's snapshots. So the new configuration is only parsed.
// With a restart, the running buildkitd is asked for its workers, and the previous configuration is
// put back if it does not come back with the node's snapshotter.
package buildkit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"lighter/install"
	"lighter/install/marks"
	"lighter/install/tomlfile"
	"lighter/install/tomltext"
	"lighter/node/doctor"
	"lighter/node/front/containerd"
	"lighter/proc"
)

// Defaults of buildkitd.
const (
	DefaultSocket = "/run/buildkit/buildkitd.sock"
	defaultConfig = "/etc/buildkit/buildkitd.toml"
	defaultUnit   = "buildkit.service"
)

// Target is the buildkitd of this machine.
type Target struct {
	Machine install.Machine
	Socket  string // on which buildkitd listens
	Config  string // its configuration; empty: the file that the running buildkitd has read
	Root    string // the node's root
}

var marker = marks.Marker{Target: "buildkit"}

// timeout bounds each wait for a program.
const timeout = 30 * time.Second

// found is the buildkitd that was found.
type found struct {
	running      bool
	pid          int      // 0: not visible
	args         []string // nil: not known
	snapshotters []string // of its workers
	config       string
}

// uses reports whether the running buildkitd uses the node.
func (f found) uses() bool { return slices.Contains(f.snapshotters, containerd.BuildKitName) }

// find finds buildkitd.
func (t *Target) find(ctx context.Context) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f := found{config: cmp.Or(t.Config, defaultConfig)}
	pid, err := proc.Listener(ctx, t.Socket)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return f, fmt.Errorf("only root may use %s: run this as root (try sudo)", t.Socket)
	case err == nil:
		f.running = true
		if f.snapshotters, err = snapshotters(ctx, t.Socket); err != nil {
			return f, err
		}
		if proc.Program(pid) == "buildkitd" { // systemd may have made the socket
			f.pid, f.args = pid, proc.Arguments(pid)
		}
	default:
		if _, missing := exec.LookPath("buildkitd"); missing != nil {
			return f, fmt.Errorf("find buildkitd: nothing listens on %s (--buildkit SOCKET), and %w", t.Socket, missing)
		}
	}
	if file, ok := doctor.Flag(f.args, "config"); ok {
		f.config = cmp.Or(t.Config, file)
	}
	return f, nil
}

var workerTable = []string{"worker", "oci"}

// settings returns the keys that the configuration needs.
func (t *Target) settings() []tomltext.Setting {
	return []tomltext.Setting{
		{Table: workerTable, Key: "snapshotter", Value: containerd.BuildKitName},
		{Table: workerTable, Key: "proxySnapshotterPath", Value: containerd.BuildKitSocket(t.Root)},
	}
}

// suitable returns an error if buildkitd cannot use the node, or would not with this configuration.
func (t *Target) suitable(f found, c tomlfile.File) error {
	is := func(key string, value bool, flag string) bool {
		if given, ok := doctor.Flag(f.args, flag); ok {
			return given == strconv.FormatBool(value)
		}
		got, ok := c.Doc.Lookup(append(slices.Clone(workerTable), key)...)
		return ok && got == value
	}
	switch {
	case is("rootless", true, "rootless") || is("rootless", true, "oci-worker-rootless"):
		return errors.New("this buildkitd is rootless: only root can use the node's socket")
	case is("enabled", false, "oci-worker"):
		return errors.New("the OCI worker of this buildkitd is off: switch it on " +
			"(enabled = true in [worker.oci]), or use the containerd worker: docs/runtimes/buildkit.md")
	}
	for _, flag := range []string{"oci-worker-snapshotter", "oci-worker-proxy-snapshotter-path"} {
		if _, given := doctor.Flag(f.args, flag); given {
			return fmt.Errorf("buildkitd is started with --%s, which overrides its configuration: "+
				"take the flag out of its service (systemctl edit --full buildkit), and run this again", flag)
		}
	}
	conn, err := net.DialTimeout("unix", containerd.BuildKitSocket(t.Root), timeout)
	if err != nil {
		return fmt.Errorf("buildkitd would not start without the node's socket for it: start the node first: %w", err)
	}
	return conn.Close()
}

// Install plans the configuration of buildkitd.
func (t *Target) Install(ctx context.Context) (*install.Plan, error) {
	f, err := t.find(ctx)
	if err != nil {
		return nil, err
	}
	c, err := tomlfile.Read(f.config, marker)
	if err == nil {
		err = t.suitable(f, c)
	}
	var text []byte
	if err == nil {
		text, err = c.With(t.settings(), nil)
	}
	if err != nil {
		return nil, install.ByHand(err, tomltext.Lines(t.settings(), nil))
	}
	p := t.plan(f, c.Change(text))
	if p.Changes, err = t.order(p.Changes, []byte(orderText)); err != nil {
		return nil, err
	}
	if !f.uses() && f.running {
		p.Notes = append(p.Notes, "the cache of the previous snapshotter stays in buildkitd's root, in runc-"+
			strings.Join(f.snapshotters, " and runc-")+": buildkitd uses it again after lighter uninstall buildkit")
	}
	p.Restart.Fallback = c.Change(c.Undone.Text)
	p.Restart.Due = f.running && (!f.uses() || proc.StartedBefore(f.pid, c.Path))
	p.Restart.Verify = t.await(func(f found) error {
		if !f.uses() {
			return fmt.Errorf("its workers have the snapshotters %v: see its log", f.snapshotters)
		}
		return nil
	})
	return p, nil
}

// Uninstall plans the configuration of buildkitd without the lines of Install.
func (t *Target) Uninstall(ctx context.Context) (*install.Plan, error) {
	f, err := t.find(ctx)
	if err != nil && !errors.Is(err, exec.ErrNotFound) { // it was removed before, and its configuration may stay
		return nil, err
	}
	c, err := tomlfile.Read(f.config, marker)
	if err != nil {
		return nil, err
	}
	p := t.plan(f, c.Change(c.Undone.Text))
	if p.Changes, err = t.order(p.Changes, nil); err != nil {
		return nil, err
	}
	stays := !slices.ContainsFunc(t.settings(), func(s tomltext.Setting) bool { return !c.Doc.Has(s) })
	if stays {
		p.Notes = append(p.Notes, c.Path+" has the node's snapshotter, which lighter install did not write: it stays")
	} else if f.uses() {
		p.Notes = append(p.Notes, "the build cache on lazy images is of no use then: remove it before "+
			"(buildctl prune --all), or delete runc-"+containerd.BuildKitName+" in buildkitd's root")
	}
	p.Restart.Due = f.uses() && !stays
	p.Restart.Verify = t.await(func(f found) error {
		if f.uses() && !stays {
			return errors.New("a worker still has the snapshotter " + containerd.BuildKitName)
		}
		return nil
	})
	return p, nil
}

// plan returns what both plans have in common.
func (t *Target) plan(f found, changes []install.Change) *install.Plan {
	state := "not running"
	if f.running {
		state = "running, snapshotter " + strings.Join(f.snapshotters, ", ")
	}
	p := &install.Plan{Target: "buildkit", Changes: changes,
		Found: []string{"buildkitd (" + state + ")", "its configuration: " + f.config}}
	if f.running {
		p.Restart = t.Machine.RestartOf("buildkitd", f.pid, defaultUnit)
	}
	if t.Machine.RunsSystemd() {
		p.After = []install.Step{t.Machine.Systemctl("daemon-reload")}
	}
	return p
}

// orderText makes systemd start the node before buildkitd.
const orderText = `# lighter install buildkit wrote this file: buildkitd looks for the node's socket when it starts.
[Unit]
Wants=lighter-node.service
After=lighter-node.service
`

// order adds the change that gives the file with orderText, which belongs to buildkitd's service, a
// new text (nil: no file). A file that somebody has changed stays.
func (t *Target) order(changes []install.Change, text []byte) ([]install.Change, error) {
	if !t.Machine.RunsSystemd() {
		return changes, nil
	}
	file, err := install.Read(t.Machine.Path("/etc/systemd/system/" + defaultUnit + ".d/lighter.conf"))
	if err != nil {
		return nil, err
	}
	if file.Bytes != nil && string(file.Bytes) != orderText {
		return changes, nil
	}
	for _, c := range file.To(text) {
		c.Directory = true
		changes = append(changes, c)
	}
	return changes, nil
}

// comeBack bounds the wait until a restarted buildkitd answers.
const comeBack = time.Minute

// await returns a function that waits until the running buildkitd is right.
func (t *Target) await(right func(found) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var f found
		err := install.Await(ctx, comeBack, func(ctx context.Context) (err error) {
			if f, err = t.find(ctx); err == nil && !f.running {
				err = fmt.Errorf("nothing listens on %s", t.Socket)
			}
			return err
		})
		if err != nil {
			return err
		}
		return right(f)
	}
}
