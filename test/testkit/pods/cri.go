package pods

import (
	"context"
	"strings"
	"testing"

	"lighter/test/testkit/site"
)

// Object is a message of CRI, as JSON.
type Object = map[string]any

// Pull pulls an image as the kubelet does for a pod. If the pod has a runtime class, handler is the
// class's handler, and the pod has containerd's annotation.
func Pull(tb testing.TB, s *site.Site, ref, handler string) {
	tb.Helper()
	annotations := map[string]string{}
	if handler != "" {
		annotations["io.containerd.cri.runtime-handler"] = handler
	}
	var pulled struct{ ImageRef string }
	err := s.Machine.CRI(tb.Context(), "PullImage", Object{"image": Object{"image": ref},
		"sandboxConfig": Object{"annotations": annotations}}, &pulled)
	if err != nil || !strings.HasPrefix(pulled.ImageRef, "sha256:") {
		tb.Fatalf("CRI pull: image %q, error %v; want a digest", pulled.ImageRef, err)
	}
}

// Disk is a file system as CRI reports it.
type Disk struct {
	FsID      struct{ Mountpoint string }
	UsedBytes struct {
		Value int64 `json:",string"`
	}
}

// ImageDisk returns the file system of images that the kubelet watches, which is the first one.
func ImageDisk(tb testing.TB, s *site.Site) Disk {
	tb.Helper()
	var info struct{ ImageFilesystems []Disk }
	if err := s.Machine.CRI(tb.Context(), "ImageFsInfo", Object{}, &info); err != nil ||
		len(info.ImageFilesystems) == 0 {
		tb.Fatalf("CRI's file systems: %+v, %v; want at least one", info, err)
	}
	return info.ImageFilesystems[0]
}

// Pod is a pod sandbox that runs.
type Pod struct {
	tb     testing.TB
	s      *site.Site
	id     string
	config Object
}

// Run runs a pod sandbox for a runtime handler, and removes it at the end of the test. The
// namespaces are as in CRI's NamespaceOption.
func Run(tb testing.TB, s *site.Site, name, handler string, namespaces Object) *Pod {
	tb.Helper()
	p := &Pod{tb: tb, s: s, config: Object{
		"metadata": Object{"name": name, "uid": name, "namespace": "default"},
		"linux": Object{"cgroupParent": "/" + s.Machine.Namespace(),
			"securityContext": Object{"namespaceOptions": namespaces}}}}
	var ran struct{ PodSandboxID string }
	if err := s.Machine.CRI(tb.Context(), "RunPodSandbox", Object{"config": p.config, "runtimeHandler": handler},
		&ran); err != nil {
		tb.Fatal(err)
	}
	p.id = ran.PodSandboxID
	tb.Cleanup(p.Remove)
	return p
}

// Remove stops and removes the pod with its containers, as far as it exists.
func (p *Pod) Remove() {
	p.tb.Helper()
	for _, method := range []string{"StopPodSandbox", "RemovePodSandbox"} {
		// The test's context has ended when its cleanups run. The client has a time limit.
		if err := p.s.Machine.CRI(context.Background(), method, Object{"podSandboxId": p.id}, nil); err != nil {
			p.tb.Error(err)
		}
	}
}

// Start starts a container of an image that was pulled for the pod's runtime handler, with more
// fields of its configuration. The container runs until it is removed.
func (p *Pod) Start(ref string, more Object) (container string) {
	p.tb.Helper()
	namespaces := p.config["linux"].(Object)["securityContext"]
	config := Object{"metadata": Object{"name": "c"}, "image": Object{"image": ref},
		"command": []string{"sleep", "infinity"}, "linux": Object{"securityContext": namespaces}}
	for key, value := range more {
		config[key] = value
	}
	var made struct{ ContainerID string }
	err := p.s.Machine.CRI(p.tb.Context(), "CreateContainer",
		Object{"podSandboxId": p.id, "config": config, "sandboxConfig": p.config}, &made)
	if err == nil {
		err = p.s.Machine.CRI(p.tb.Context(), "StartContainer", Object{"containerId": made.ContainerID}, nil)
	}
	if err != nil {
		p.tb.Fatal(err)
	}
	return made.ContainerID
}

// Exec runs a shell's script in a container and returns its output.
func (p *Pod) Exec(container, script string) string {
	p.tb.Helper()
	var ran struct {
		Stdout, Stderr []byte
		ExitCode       int
	}
	err := p.s.Machine.CRI(p.tb.Context(), "ExecSync",
		Object{"containerId": container, "cmd": []string{"sh", "-ec", script}}, &ran)
	if err != nil || ran.ExitCode != 0 {
		p.tb.Errorf("%s: exit code %d, %v, %s%s", script, ran.ExitCode, err, ran.Stdout, ran.Stderr)
	}
	return string(ran.Stdout)
}
