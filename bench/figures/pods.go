package figures

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lighter/bench"
	"lighter/sleep"
	"lighter/test/testkit/pods"
	"lighter/test/testkit/site"
	"lighter/test/testkit/workdir"
)

// stateInterval is the time between two looks whether a container has ended. (A kubelet looks once
// a second.)
const stateInterval = 5 * time.Millisecond

// podRuntime runs pods as the kubelet does, with a CRI client. containerd has the configuration
// that Lighter ships; without Lighter, overlayfs is the snapshotter. The pause image is on the
// machine, and the client is connected.
type podRuntime struct {
	*run
	config string // containerd's, with Lighter
	client *site.CRI
	pod    string // the ID of its sandbox
}

// newPods prepares containerd's configuration, and the pause image.
func (r *run) newPods(ctx context.Context) (*podRuntime, error) {
	module, err := workdir.Module()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(module, "deploy/containerd/config-2.1.toml"))
	if err != nil {
		return nil, err
	}
	cni := filepath.Join(r.Site.Dir, "cni")
	if err := os.MkdirAll(cni, 0o755); err != nil {
		return nil, err
	}
	config, err := pods.Config(cni, string(text), "")
	if err != nil {
		return nil, err
	}
	return &podRuntime{run: r, config: config}, pods.AddPause(ctx, r.Site)
}

func (*podRuntime) name() string { return "CRI" }

func (p *podRuntime) prepare(ctx context.Context, mode string) (err error) {
	p.Site.SetConfig(strings.Replace(p.config, `snapshotter = "lighter"`, fmt.Sprintf("snapshotter = %q", mode), 1))
	if err := p.Site.Machine.Wipe(ctx); err != nil {
		return err
	}
	if p.client, err = p.Site.Machine.StartCRI(ctx); err != nil {
		return err
	}
	return p.client.Call("PullImage", pods.Object{"image": pods.Object{"image": pods.Pause}}, nil)
}

func (p *podRuntime) start(ctx context.Context, _ string, w bench.Workload) error {
	ref := pods.Object{"image": site.Reference(w.Image)}
	security := pods.Object{"securityContext": pods.Object{"namespaceOptions": pods.Object{"network": "NODE"}}}
	pod := pods.Object{"metadata": pods.Object{"name": "print", "uid": "print", "namespace": "default"},
		"logDirectory": p.logs(), "linux": security}
	var sandbox struct{ PodSandboxID string }
	if err := p.client.Call("RunPodSandbox", pods.Object{"config": pod}, &sandbox); err != nil {
		return err
	}
	p.pod = sandbox.PodSandboxID
	if err := p.client.Call("PullImage", pods.Object{"image": ref, "sandboxConfig": pod}, nil); err != nil {
		return err
	}
	config := pods.Object{"metadata": pods.Object{"name": "print"}, "image": ref, "command": w.Argv,
		"logPath": "print.log", "linux": security}
	var container struct{ ContainerID string }
	if err := p.client.Call("CreateContainer", pods.Object{"podSandboxId": p.pod, "config": config,
		"sandboxConfig": pod}, &container); err != nil {
		return err
	}
	if err := p.client.Call("StartContainer", pods.Object{"containerId": container.ContainerID}, nil); err != nil {
		return err
	}
	for {
		var now struct {
			Status struct {
				State    string
				ExitCode int
			}
		}
		if err := p.client.Call("ContainerStatus", pods.Object{"containerId": container.ContainerID},
			&now); err != nil {
			return err
		}
		if now.Status.State == "CONTAINER_EXITED" {
			text, err := os.ReadFile(filepath.Join(p.logs(), "print.log"))
			if now.Status.ExitCode != 0 {
				err = errors.Join(err, fmt.Errorf("exit code %d", now.Status.ExitCode))
			}
			return printed(unlogged(text), err)
		}
		if !sleep.For(ctx, stateInterval) {
			return context.Cause(ctx)
		}
	}
}

// unlogged returns the output in a container's log: each of its lines begins with time, stream and
// tag.
func unlogged(log []byte) string {
	var out strings.Builder
	for line := range bytes.Lines(log) {
		if fields := bytes.SplitN(line, []byte(" "), 4); len(fields) == 4 {
			out.Write(fields[3])
		}
	}
	return out.String()
}

func (p *podRuntime) end(context.Context, bool) (err error) {
	if p.client == nil {
		return nil
	}
	for _, method := range []string{"StopPodSandbox", "RemovePodSandbox"} {
		if p.pod != "" && err == nil {
			err = p.client.Call(method, pods.Object{"podSandboxId": p.pod}, nil)
		}
	}
	err = errors.Join(err, p.client.Close(), os.RemoveAll(p.logs()))
	p.client, p.pod = nil, ""
	return err
}

func (p *podRuntime) logs() string { return filepath.Join(p.Site.Dir, "pod-logs") }
