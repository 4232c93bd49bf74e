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
	// maxTrials bounds the images that wait for their trial. Further ones have none; their first
	// start on a node will be reported.
	maxTrials = 100
	// trialTimeout bounds one trial.
	trialTimeout = 4 * time.Minute
	// trialOutputTimeout bounds the wait for a trial's output after its end.
	trialOutputTimeout = 10 * time.Second
)

// trials starts each new image once, in a sandbox without network, so that there is a trace before
// the first start on a node. The trials run one at a time. Each is a process of `lighter trial`,
// which is a node of this hub, in namespaces that end with it.
type trials struct {
	hub    *Hub
	cgroup string // control group of the running trial
	queue  chan catalog.Image
}

// trialNamespaces are the namespaces of a trial's node.
const trialNamespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC

// checkTrials returns an error if this hub can run no trials at all, so that it is reported at the
// start.
func checkTrials(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "runc", "--version")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: trialNamespaces}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("trace_run needs root, runc, and namespaces, which the hub's systemd unit forbids (docs/operating.md, Trials): "+
			"run runc in namespaces of its own: %w", err)
	}
	return nil
}

// add queues an image for a trial, unless too many are waiting.
func (t *trials) add(image catalog.Image) {
	select {
	case t.queue <- image:
	default:
		t.hub.log.Warn("no trial of an image: too many are waiting", "image", image.Name)
	}
}

// run runs trials until ctx ends. Their nodes send requests to the handler.
func (t *trials) run(ctx context.Context, handler http.Handler) error {
	// On loopback, the trial's node may learn the hub's key from the hub.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for trials: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: readHeaderTimeout}
	defer server.Close()
	go func() { _ = server.Serve(listener) }() // ends with Close
	// Pdeathsig kills a trial when the thread that has started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case <-ctx.Done():
			return nil
		case image := <-t.queue:
			recorded, err := t.start(ctx, image, "http://"+listener.Addr().String())
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				t.hub.log.Warn("trial failed", "image", image.Name, "err", err)
			case recorded != "":
				t.hub.log.Info("trial ended", "image", image.Name, "recorded", recorded)
			}
		}
	}
}

// start runs the trial of an image, unless a start of it is known. It returns the trial's output.
func (t *trials) start(ctx context.Context, image catalog.Image, url string) (output string, err error) {
	known, err := t.hub.starts.Known(ctx, image.Tree)
	if err != nil || known {
		return "", err
	}
	config, err := t.hub.images.RunConfig(ctx, image)
	if err != nil {
		return "", err
	}
	if len(config.Entrypoint)+len(config.Cmd) == 0 {
		return "", nil // the image has no program to start
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
	cmd := exec.CommandContext(ctx, self, "trial", "--hub", url, "--name", image.Name, "--platform", image.Platform,
		"--tree", image.Tree.String(),
		"--cgroup", t.cgroup, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: trialNamespaces, Pdeathsig: syscall.SIGKILL}
	var stdout, stderr bytes.Buffer
	cmd.WaitDelay = trialOutputTimeout
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return "", fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	return strings.TrimSpace(stdout.String()), nil
}
