package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"lighter/hub/catalog"
)

const (
	// maxTrials bounds the images that wait for their trial. Of more, their first
	// start elsewhere will tell as much.
	maxTrials = 100
	// trialTimeout bounds one trial.
	trialTimeout = 4 * time.Minute
	// trialRest is how long what it says is waited for when it has ended.
	trialRest = 10 * time.Second
)

// trials start each image once that has just become ready, in a sandbox without
// network, so that its first trace is there before its first start: one at a time.
// What is started is `lighter trial`, which is a node of this hub, in namespaces
// that end with it.
type trials struct {
	hub    *Hub
	cgroup string // the control group that each has
	queue  chan catalog.Image
}

// trialNamespaces are those that the node of a trial runs in.
const trialNamespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC

// checkTrials fails if this hub cannot start images at all, which is then said once, rather than
// of each image.
func checkTrials(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "runc", "--version")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: trialNamespaces}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("trace_run needs root, runc, and namespaces, which the hub's systemd unit forbids (docs/operating.md, Trials): "+
			"run runc in namespaces of its own: %w", err)
	}
	return nil
}

// add has an image started, if not too many wait.
func (t *trials) add(image catalog.Image) {
	select {
	case t.queue <- image:
	default:
		t.hub.log.Warn("an image is not started for its trace: too many wait", "image", image.Name)
	}
}

// run starts images until ctx ends, for a node that asks the handler.
func (t *trials) run(ctx context.Context, handler http.Handler) error {
	// The trial's node learns the hub's key, which it does on this machine alone.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for trials: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: readHeaderTimeout}
	defer server.Close()
	go func() { _ = server.Serve(listener) }() // ends with Close
	// What is started ends with the thread that has started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case <-ctx.Done():
			return nil
		case image := <-t.queue:
			said, err := t.start(ctx, image, "http://"+listener.Addr().String())
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				t.hub.log.Warn("an image could not be started for its trace", "image", image.Name, "cause", err)
			case said != "":
				t.hub.log.Info("an image was started for its trace", "image", image.Name, "recorded", said)
			}
		}
	}
}

// start starts an image, unless something is known of its starts, and returns what
// the trial says.
func (t *trials) start(ctx context.Context, image catalog.Image, url string) (said string, err error) {
	known, err := t.hub.starts.Known(ctx, image.Tree)
	if err != nil || known {
		return "", err
	}
	config, err := t.hub.images.RunConfig(ctx, image)
	if err != nil {
		return "", err
	}
	if len(config.Entrypoint)+len(config.Cmd) == 0 {
		return "", nil // it says nothing of how it starts
	}
	stdin, err := json.Marshal(config)
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := trialDir(t.hub.config.Root)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir), removeCgroup(cgroupRoot, t.cgroup)) }()
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "trial", "--hub", url, "--name", image.Name, "--platform", image.Platform, "--tree", image.Tree.String(),
		"--cgroup", t.cgroup, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: trialNamespaces, Pdeathsig: syscall.SIGKILL}
	var stdout, stderr bytes.Buffer
	cmd.WaitDelay = trialRest
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return "", fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	return strings.TrimSpace(stdout.String()), nil
}
