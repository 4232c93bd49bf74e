package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Ctr runs ctr against the machine's containerd and returns its standard output.
func (m *Machine) Ctr(ctx context.Context, args ...string) (string, error) {
	return m.site.command(ctx, m.ctr(m.namespace, args)...)
}

// CtrIn does what Ctr does, in a given namespace of containerd.
func (m *Machine) CtrIn(ctx context.Context, namespace string, args ...string) (string, error) {
	return m.site.command(ctx, m.ctr(namespace, args)...)
}

func (m *Machine) ctr(namespace string, args []string) []string {
	return append([]string{m.tool("ctr"), "--address", m.ContainerdSocket(), "--namespace", namespace}, args...)
}

// Pull pulls an image and returns how long it took.
func (m *Machine) Pull(ctx context.Context, snapshotter, ref string) (time.Duration, error) {
	start := time.Now()
	_, err := m.Ctr(ctx, "images", "pull", "--plain-http", "--snapshotter", snapshotter, ref)
	return time.Since(start), err
}

// Container is a container that runs until it is removed.
type Container struct {
	ID      string
	PID     int    // of its first process
	Root    string // its root directory on the host
	machine *Machine
}

// StartContainer starts a container that runs argv.
func (m *Machine) StartContainer(ctx context.Context, snapshotter, ref string, argv ...string) (*Container, error) {
	c := &Container{ID: m.nextContainer(), machine: m}
	c.Root = filepath.Join(m.bundle(c.ID), "rootfs")
	if _, err := m.Ctr(ctx, append([]string{"run", "--detach", "--snapshotter", snapshotter, ref, c.ID},
		argv...)...); err != nil {
		return nil, err
	}
	if err := c.findProcess(); err != nil {
		return nil, errors.Join(err, c.Remove(ctx))
	}
	return c, nil
}

func (c *Container) findProcess() error {
	text, err := os.ReadFile(filepath.Join(c.machine.bundle(c.ID), "init.pid"))
	if err == nil {
		c.PID, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err != nil {
		return fmt.Errorf("find the process of container %s: %w", c.ID, err)
	}
	return nil
}

// StartAgain starts a container whose process has ended, with its writable layer.
func (c *Container) StartAgain(ctx context.Context) error {
	if _, err := c.machine.Ctr(ctx, "tasks", "start", "--detach", c.ID); err != nil {
		return err
	}
	return c.findProcess()
}

// Exec runs argv in the container and returns its standard output.
func (c *Container) Exec(ctx context.Context, argv ...string) (string, error) {
	id := "e" + strconv.FormatInt(c.machine.containers.Add(1), 10)
	return c.machine.Ctr(ctx, append([]string{"tasks", "exec", "--exec-id", id, c.ID}, argv...)...)
}

// Remove kills the container and removes it with its snapshot.
func (c *Container) Remove(ctx context.Context) error { return c.machine.removeContainer(ctx, c.ID) }

func (m *Machine) removeContainer(ctx context.Context, id string) error {
	_, task := m.Ctr(ctx, "tasks", "rm", "--force", id)
	_, err := m.Ctr(ctx, "containers", "rm", id)
	if err != nil {
		return errors.Join(task, err)
	}
	return nil // the task's error is ignored, because a container may have no task
}

// removeContainers removes all containers of the machine's namespace.
func (m *Machine) removeContainers(ctx context.Context) error {
	out, err := m.Ctr(ctx, "containers", "ls", "--quiet")
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range strings.Fields(out) {
		errs = append(errs, m.removeContainer(ctx, id))
	}
	return errors.Join(errs...)
}

// RemoveImage removes an image, and waits until containerd has freed its content and snapshots.
func (m *Machine) RemoveImage(ctx context.Context, ref string) error {
	_, err := m.Ctr(ctx, "images", "rm", "--sync", ref)
	return err
}
