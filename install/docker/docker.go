// Package docker makes Docker on this machine use a node, and undoes it.
//
// It sets two keys of Docker's configuration (daemon.json), which make Docker keep its images in
// containerd, in the snapshotter lighter. If the user wishes, it adds a hub to registry-mirrors, so
// that Docker asks it before Docker Hub. Every other byte of the file stays. JSON has no comments,
// so a second file beside it records what was set, and what was there before. With this record, the
// removal restores the file byte for byte, or, if somebody has changed it since, takes out what was
// set. The record has nothing else of the file, which may contain secrets.
//
// The new configuration is checked by dockerd itself, with the arguments that dockerd runs with: it
// refuses a setting that is both a flag and in the file. The package refuses what would not work or
// would not be lazy: a containerd of Docker's own, userns-remap, rootless Docker, and versions
// before 24. It changes the storage driver only while no container runs, because Docker does not
// show containers of another storage driver.
package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"lighter/install"
	"lighter/node/doctor"
	"lighter/proc"
)

// Target is the Docker of this machine.
type Target struct {
	Machine    install.Machine
	Socket     string   // on which dockerd listens
	Config     string   // its configuration; empty: the file that dockerd reads
	Containerd string   // the socket of the containerd that has the node as a snapshotter
	Blobs      []string // the namespaces of containerd that have the layers of lazy images (node.Config)
	Hub        string   // URL of a hub that is asked before Docker Hub; empty: none
	Force      bool     // change the storage driver although containers run
}

// driver is the name of the node in containerd, and so the name of Docker's storage driver.
const driver = "lighter"

// unit is the service of Docker, unless its process belongs to another one.
const unit = "docker.service"

// machineSocket is where Docker looks for the machine's containerd when it starts.
const machineSocket = "/run/containerd/containerd.sock"

// timeout bounds each wait for a program.
const timeout = 30 * time.Second

// oldest is the first version of Docker that can use snapshotters of containerd.
const oldest = 24

// find finds Docker. It returns an error if Docker cannot be used with Lighter, whatever its
// configuration is.
func (t *Target) find(ctx context.Context) (doctor.Docker, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d, err := doctor.FindDocker(ctx, t.Socket)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return d, fmt.Errorf("only root may use %s: run this as root (try sudo)", t.Socket)
	case err != nil:
		return d, fmt.Errorf("find Docker (--docker SOCKET): %w", err)
	}
	d.Config = cmp.Or(t.Config, d.Config)
	if !d.Running {
		if d.Program, err = exec.LookPath("dockerd"); err != nil {
			return d, fmt.Errorf("find Docker: no dockerd runs, and %w", err)
		}
		out, err := exec.CommandContext(ctx, d.Program, "--version").Output()
		if err != nil {
			return d, fmt.Errorf("%s --version: %w", d.Program, err)
		}
		d.ServerVersion = versionPattern.FindString(string(out))
		d.Args = t.unitArgs(ctx)
		if file, ok := doctor.Flag(d.Args, "config-file"); ok {
			d.Config = cmp.Or(t.Config, file)
		}
	}
	if major := majorOf(d.ServerVersion); major > 0 && major < oldest {
		return d, fmt.Errorf("find Docker: version %s is too old: it uses snapshotters of containerd since version %d",
			d.ServerVersion, oldest)
	}
	return d, nil
}

// versionPattern matches the version in the output of `dockerd --version`.
var versionPattern = regexp.MustCompile(`\d+\.\d+\.\d+\S*\b`)

// majorOf returns the first number of a version, or 0 if it is no version: dockerd that is not
// built by its makefile has none.
func majorOf(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(first)
	return n
}

// argsPattern matches the command line in what `systemctl show --property=ExecStart` prints.
var argsPattern = regexp.MustCompile(`argv\[\]=(.*?) ;`)

// unitArgs returns the arguments with which systemd starts dockerd, or nil if they are not known.
// Variables are left out.
func (t *Target) unitArgs(ctx context.Context) []string {
	if !t.Machine.RunsSystemd() {
		return nil
	}
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=ExecStart", "--value", unit).Output()
	line := argsPattern.FindSubmatch(out)
	if err != nil || line == nil {
		return nil
	}
	args := strings.Fields(string(line[1]))
	return slices.DeleteFunc(args[min(1, len(args)):], func(arg string) bool { return strings.HasPrefix(arg, "$") })
}

// facts says what was found.
func facts(d doctor.Docker) []string {
	if d.ServerVersion == "" && !d.Running {
		return []string{"Docker is not installed", "its configuration: " + d.Config}
	}
	state := "not running"
	if d.Running {
		state = fmt.Sprintf("running, storage driver %s, %d images, %d containers", d.Driver, d.Images, d.Containers)
	}
	return []string{"Docker " + d.ServerVersion + " (" + state + ")", "its configuration: " + d.Config}
}

// uses reports whether the running Docker uses the node.
func uses(d doctor.Docker) bool { return d.ImageStore() && d.Driver == driver }

// Install plans the configuration of Docker.
func (t *Target) Install(ctx context.Context) (*install.Plan, error) {
	d, err := t.find(ctx)
	if err != nil {
		return nil, err
	}
	c, err := read(d.Config)
	if err != nil {
		return nil, err
	}
	if err := t.suitable(ctx, d, c); err != nil {
		return nil, err
	}
	wanted, err := c.withMirror(t.Hub)
	if err != nil {
		return nil, err
	}
	changes, err := c.install(lackingIn(d.Args, wanted))
	if err != nil {
		return nil, err
	}
	if err := t.idle(d, !uses(d)); err != nil {
		return nil, err
	}
	p := t.plan(d, changes)
	p.Notes = t.notes(d)
	p.Restart.Fallback = c.uninstall()
	p.Check = func(ctx context.Context, staged map[string]string) error {
		return validate(ctx, d, staged[c.file.Path])
	}
	p.Restart.Due = d.Running && (!uses(d) || proc.StartedBefore(d.PID, c.file.Path))
	p.Restart.Verify = t.await(func(d doctor.Docker) error {
		if !uses(d) {
			return fmt.Errorf("its storage driver is %s", d.Driver)
		}
		return nil
	})
	return p, nil
}

// suitable returns an error if Docker and its containerd cannot use the node.
func (t *Target) suitable(ctx context.Context, d doctor.Docker, c config) error {
	remap, flag := doctor.Flag(d.Args, "userns-remap")
	if !flag {
		remap = c.text("userns-remap")
	}
	environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", d.PID))
	switch {
	case d.Has("rootless"):
		return errors.New("rootless Docker is not supported: its containerd runs in a user namespace, where a node " +
			"cannot mount its images. Use Docker as root")
	case d.Has("userns") || remap != "":
		return errors.New("userns-remap is set: Docker changes the owner of each file for each container, which " +
			"reads the whole image. Remove userns-remap, or keep Docker's own storage driver")
	case strings.HasPrefix(string(environment), "DOCKER_DRIVER=") ||
		strings.Contains(string(environment), "\x00DOCKER_DRIVER="):
		return errors.New("the variable DOCKER_DRIVER of Docker's service overrides its configuration: remove it " +
			"(systemctl edit docker)")
	}
	address := t.address(d)
	if address == "" || !doctor.SameSocket(address, t.Containerd) {
		return fmt.Errorf("the containerd of Docker (%s) is not %s, but one that Docker may have started itself, and "+
			"whose configuration it then overwrites: start the machine's containerd before Docker, or name its socket "+
			"with --containerd in Docker's service (systemctl edit docker)", cmp.Or(address, "unknown"), t.Containerd)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := doctor.FindContainerd(ctx, t.Containerd)
	if err != nil {
		return fmt.Errorf("find Docker's containerd: %w", err)
	}
	if why, ok := found.Snapshotters[driver]; !ok || why != "" {
		return fmt.Errorf("containerd has no snapshotter %s, so Docker would not start: "+
			"run sudo lighter install containerd --restart first", driver)
	}
	return nil
}

// address returns the socket of the containerd that Docker uses, or will use.
func (t *Target) address(d doctor.Docker) string {
	if d.Containerd.Address != "" {
		return d.Containerd.Address
	}
	if socket, ok := doctor.Flag(d.Args, "containerd"); ok {
		return strings.TrimPrefix(socket, "unix://")
	}
	if _, err := os.Stat(machineSocket); err == nil {
		return machineSocket
	}
	return ""
}

// idle returns an error if containers run and the storage driver changes.
func (t *Target) idle(d doctor.Docker, changes bool) error {
	if t.Force || !changes || d.ContainersRunning == 0 {
		return nil
	}
	why := "its restart would stop them"
	if d.LiveRestoreEnabled {
		why = "with live-restore, they would go on running, and Docker would not know them any more"
	}
	return fmt.Errorf("%d containers of Docker run, and the storage driver changes: %s. "+
		"Stop and remove them first, or give --force", d.ContainersRunning, why)
}

// notes says what happens to images and containers, and which commands need more.
func (t *Target) notes(d doctor.Docker) []string {
	notes := []string{"images become lazy when they are pulled again"}
	if t.Hub != "" {
		notes = append(notes, "the hub stands for Docker Hub only under its docker_names: the host of "+t.Hub+
			" has to be one of them")
	}
	namespace, given := doctor.Flag(d.Args, "containerd-namespace")
	if !given {
		namespace = "moby"
	}
	if !slices.Contains(t.Blobs, namespace) {
		notes = append(notes, fmt.Sprintf("docker push, docker save, and builds by BuildKit need the layers of lazy "+
			"images: set blob_namespaces = [%q] in the node's configuration, and restart the node", namespace))
	}
	switch {
	case !d.Running || uses(d):
		return notes
	case d.ImageStore():
		return append(notes, fmt.Sprintf("Docker's %d images stay, and are unpacked once more when a container uses "+
			"them. It does not show the %d containers of the storage driver %s until "+
			"\"lighter uninstall docker --restart\"", d.Images, d.Containers, d.Driver))
	}
	return append(notes, fmt.Sprintf("the %d images and %d containers of the storage driver %s stay in %s. Docker "+
		"does not show them until \"lighter uninstall docker --restart\"",
		d.Images, d.Containers, d.Driver, d.DockerRootDir))
}

// Uninstall plans the configuration of Docker without what Install has set.
func (t *Target) Uninstall(ctx context.Context) (*install.Plan, error) {
	d, err := t.find(ctx)
	if err != nil && !errors.Is(err, exec.ErrNotFound) { // Docker was removed before, and its configuration may stay
		return nil, err
	}
	c, err := read(d.Config)
	if err != nil {
		return nil, err
	}
	changes := c.uninstall()
	stays := c.hasDriver(c.undone)
	if err := t.idle(d, uses(d) && !stays); err != nil {
		return nil, err
	}
	p := t.plan(d, changes)
	if stays {
		p.Notes = append(p.Notes, c.file.Path+" has the storage driver "+driver+
			", which lighter install did not write: it stays")
	} else if uses(d) {
		p.Notes = append(p.Notes, "containers and images of the storage driver "+driver+
			" stay, and Docker does not show the containers: remove them before, or install again")
	}
	p.Restart.Due = uses(d) && !stays
	p.Restart.Verify = t.await(func(d doctor.Docker) error {
		if uses(d) && !stays {
			return errors.New("its storage driver is still " + driver)
		}
		return nil
	})
	return p, nil
}

// plan returns what both plans have in common.
func (t *Target) plan(d doctor.Docker, changes []install.Change) *install.Plan {
	p := &install.Plan{Target: "docker", Found: facts(d), Changes: changes}
	if d.Running {
		p.Restart = t.Machine.RestartOf("Docker", d.PID, unit)
	}
	return p
}

// comeBack bounds the wait until a restarted Docker answers.
const comeBack = 2 * time.Minute

// await returns a function that waits until the running Docker is right.
func (t *Target) await(right func(doctor.Docker) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var d doctor.Docker
		err := install.Await(ctx, comeBack, func(ctx context.Context) (err error) {
			if d, err = doctor.FindDocker(ctx, t.Socket); err == nil && !d.Running {
				err = errors.New("no dockerd runs")
			}
			return err
		})
		if err != nil {
			return err
		}
		return right(d)
	}
}

// validate lets dockerd check a configuration. It gets the arguments that it runs with, because it
// refuses what is set twice.
func validate(ctx context.Context, d doctor.Docker, config string) error {
	args := []string{"--validate"}
	for i := 0; i < len(d.Args); i++ {
		switch arg := d.Args[i]; {
		case arg == "--config-file":
			i++
		case !strings.HasPrefix(arg, "--config-file="):
			args = append(args, arg)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, d.Program, append(args, "--config-file", config)...).CombinedOutput()
	if err == nil {
		return nil
	}
	return fmt.Errorf("dockerd --validate: %w: %s", err, install.LastLine(out))
}

// recordOf returns the path of the record about a configuration.
func recordOf(path string) string {
	return filepath.Join(filepath.Dir(path), filepath.Base(path)+".lighter")
}
