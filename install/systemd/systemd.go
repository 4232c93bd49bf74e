// Package systemd installs the services of a node and of a hub, and removes them.
//
// Install writes our units (package deploy), and the configuration files that do not exist. It
// never changes an existing configuration, nor a unit that it did not write. Uninstall stops the
// services and removes what Install wrote, except for a configuration that somebody has changed. It
// refuses while containers use lazy images. The node's cache stays unless the user asks; a hub's
// data stays in any case.
package systemd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"lighter/deploy"
	"lighter/install"
	"lighter/install/marks"
	"lighter/node"
)

// Units of our services.
const (
	nodeUnit = "lighter-node.service"
	hubUnit  = "lighter-hub.service"
)

// unitDir is the directory of the units that an administrator installs.
const unitDir = "/etc/systemd/system"

// Target is the systemd of this machine.
type Target struct {
	Machine install.Machine
	Program string // the lighter binary that the services run
	Node    Service
	Hub     *Service // nil: no hub
	Root    string   // the node's
	Force   bool     // uninstall although containers use lazy images
	Purge   bool     // uninstall the node's directory, too
}

// Service is a service with its configuration file.
type Service struct {
	Config string // the file's path
	Text   []byte // its contents if it does not exist; nil: it has to exist
	// Replace gives an existing file new contents, if Install wrote it and nobody has changed it
	// since.
	Replace bool
	// Compare returns why an existing file does not fit to what the user asked for. Nil: any fits.
	Compare func(text []byte) error
}

var marker = marks.Marker{Target: "systemd"}

// unit is a unit with the path that its text has in place of the configuration's.
type unit struct {
	name, text, config string
	service            Service
}

// units returns the units that are to be installed. The hub's is first, because a node on the same
// machine needs it.
func (t *Target) units() []unit {
	units := []unit{{nodeUnit, deploy.NodeUnit, deploy.NodeConfig, t.Node}}
	if t.Hub != nil {
		units = append([]unit{{hubUnit, deploy.HubUnit, deploy.HubConfig, *t.Hub}}, units...)
	}
	return units
}

// Install plans the services.
func (t *Target) Install(context.Context) (*install.Plan, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	if err := install.Trusted(t.Program); err != nil {
		return nil, err
	}
	p := &install.Plan{Target: "systemd", Found: []string{"the services run " + t.Program}}
	var names []string
	for _, u := range t.units() {
		changes, err := t.install(u)
		if err != nil {
			return nil, err
		}
		p.Changes, names = append(p.Changes, changes...), append(names, u.name)
	}
	p.After = []install.Step{t.Machine.Systemctl("daemon-reload"),
		t.Machine.Systemctl(append([]string{"enable"}, names...)...)}
	p.Restart = install.Restart{What: "the services", Units: names, Due: true, Verify: func(ctx context.Context) error {
		if err := t.Machine.Systemctl(append([]string{"is-active"}, names...)...).Run(ctx); err != nil {
			return fmt.Errorf("%w (journalctl -u %s)", err, strings.Join(names, " -u "))
		}
		return nil
	}}
	if t.Hub != nil {
		p.Notes = append(p.Notes, "a node that is to use this hub needs its key: "+
			"sudo lighter hub key show --root /var/lib/lighter-hub; hub_keys in "+t.Node.Config)
	}
	return p, nil
}

// check returns an error if systemd does not run on the machine.
func (t *Target) check() error {
	if !t.Machine.RunsSystemd() {
		return errors.New("systemd does not run on this machine (/run/systemd/system does not exist): " +
			"run `lighter node` with the service manager of the machine")
	}
	return nil
}

// install returns the changes that install a unit and its configuration.
func (t *Target) install(u unit) ([]install.Change, error) {
	config, err := install.Read(t.Machine.Path(u.service.Config))
	if err != nil {
		return nil, err
	}
	var changes []install.Change
	switch {
	case config.Bytes == nil && u.service.Text == nil:
		return nil, fmt.Errorf("%s does not exist", u.service.Config)
	case config.Bytes == nil:
		changes = config.To(signed(u.service.Text))
		changes[0].Directory = install.Missing(filepath.Dir(config.Path))
	case u.service.Replace && isSigned(config.Bytes):
		changes = config.To(signed(u.service.Text))
	case u.service.Compare != nil:
		if err := u.service.Compare(config.Bytes); err != nil {
			return nil, fmt.Errorf("%s exists, and is not changed: %w", u.service.Config, err)
		}
	}
	file, undone, err := t.unit(u.name)
	switch {
	case err != nil:
		return nil, err
	case file.Bytes != nil && undone.Blocks == 0:
		return nil, &install.Refused{Path: file.Path, Why: "lighter install did not write it: remove it, " +
			"and run the command again, or keep it as it is"}
	}
	origin := marks.Nothing
	if undone.Blocks > 0 && undone.Origin == marks.File {
		origin = marks.File
	}
	text := strings.NewReplacer(deploy.Program, t.Program, u.config, u.service.Config).Replace(u.text)
	end := len(undone.Text)
	return append(changes, file.To(marker.Apply(undone.Text, origin,
		[]marks.Edit{{At: end, Until: end, Lines: text}}))...), nil
}

// unit reads a unit.
func (t *Target) unit(name string) (install.Text, marks.Undone, error) {
	file, err := install.Read(t.Machine.Path(filepath.Join(unitDir, name)))
	if err != nil {
		return file, marks.Undone{}, err
	}
	undone, err := marker.Undo(file.Bytes)
	if err != nil {
		err = &install.Refused{Path: file.Path, Why: err.Error()}
	}
	return file, undone, err
}

// Uninstall plans the removal of the services.
func (t *Target) Uninstall(ctx context.Context) (*install.Plan, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	p := &install.Plan{Target: "systemd"}
	var names []string
	for _, name := range []string{nodeUnit, hubUnit} {
		file, undone, err := t.unit(name)
		if err != nil {
			return nil, err
		}
		if undone.Blocks == 0 {
			continue
		}
		text := undone.Text
		if undone.Gone() {
			text = nil
		}
		p.Changes, names = append(p.Changes, file.To(text)...), append(names, name)
		p.Found = append(p.Found, name+" was installed by lighter")
	}
	configs, err := t.configs(p)
	if err != nil {
		return nil, err
	}
	p.Changes = append(p.Changes, configs...)
	p.After = []install.Step{t.Machine.Systemctl("daemon-reload")}
	if len(names) == 0 {
		return t.purge(p), nil
	}
	if !t.Force && names[0] == nodeUnit {
		if err := install.InUse(ctx, t.Root); err != nil {
			return nil, err
		}
	}
	p.Before = []install.Step{t.Machine.Systemctl(append([]string{"disable", "--now"}, names...)...)}
	if names[0] == nodeUnit {
		p.Before = append(p.Before, t.release(), t.forget())
	}
	return t.purge(p), nil
}

// configs returns the changes that remove the configuration files that Install wrote and nobody has
// changed since.
func (t *Target) configs(p *install.Plan) (changes []install.Change, err error) {
	for _, path := range []string{deploy.NodeConfig, deploy.HubConfig} {
		file, err := install.Read(t.Machine.Path(path))
		switch {
		case err != nil:
			return nil, err
		case file.Bytes == nil:
		case isSigned(file.Bytes):
			change := file.To(nil)
			change[0].Directory = true
			changes = append(changes, change...)
		default:
			p.Notes = append(p.Notes, path+" was written or changed by somebody else: it stays")
		}
	}
	return changes, nil
}

// release returns the step that gives up the devices of the stopped node. Otherwise reads of its
// mounts would wait for a next node for ever.
func (t *Target) release() install.Step {
	return install.Step{What: "lighter release --root " + t.Root, Run: func(ctx context.Context) error {
		err := node.Release(ctx, t.Root, slog.New(slog.DiscardHandler))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // no node has ever run
		}
		return err
	}}
}

// forget returns the step that drops the descriptors that systemd holds for the node.
func (t *Target) forget() install.Step {
	step := t.Machine.Systemctl("clean", "--what=fdstore", nodeUnit)
	return install.Step{What: step.What, Run: func(ctx context.Context) error {
		_ = step.Run(ctx) // before version 254, systemd knows no such argument, and holds none after a stop
		return nil
	}}
}

// purge adds the step that removes the node's directory, if the user wants it.
func (t *Target) purge(p *install.Plan) *install.Plan {
	if _, err := os.Stat(t.Root); err != nil {
		return p
	}
	if !t.Purge {
		p.Notes = append(p.Notes, t.Root+" stays, with the node's cache and the writable files of containers: "+
			"--purge removes it")
		return p
	}
	p.After = append(p.After, install.Step{What: "rm -r " + t.Root,
		Run: func(context.Context) error { return os.RemoveAll(t.Root) }})
	return p
}

// signature is the beginning of the first line of a file that Install wrote. The line ends with the
// digest of the rest.
const signature = "# Written by lighter install systemd, whose uninstall removes it if it is unchanged. sha256:"

func signed(text []byte) []byte {
	return fmt.Appendf(nil, "%s%x\n%s", signature, sha256.Sum256(text), text)
}

func isSigned(text []byte) bool {
	_, rest, ok := bytes.Cut(text, []byte("\n"))
	return ok && bytes.Equal(text, signed(rest))
}
