//go:build e2e

package system

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"

	"lighter/test/testkit/site"
)

// labelled creates containers of a lazy image with an SELinux label, as the kubelet does: one on an
// active snapshot, and one on a view. It checks that containerd mounts an overlay with this label,
// because a bind mount cannot have the label. A kernel without SELinux refuses the mount; then
// containerd's error shows the mount's options.
func labelled(t *testing.T, s *site.Site, namespace, ref string) {
	t.Helper()
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	client, err := containerd.New(s.Machine.ContainerdSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	image, err := client.GetImage(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	withLabel := func(ctx context.Context, _ oci.Client, _ *containers.Container, spec *oci.Spec) error {
		spec.Linux.MountLabel = label
		spec.Linux.CgroupsPath = cgroup(t, s)
		return nil
	}
	for kind, snapshot := range map[string]func(string, containerd.Image, ...snapshots.Opt) containerd.NewContainerOpts{
		"active": containerd.WithNewSnapshot, "view": containerd.WithNewSnapshotView,
	} {
		id := "labelled-" + kind
		c, err := client.NewContainer(ctx, id, containerd.WithSnapshotter(site.Lighter), snapshot(id, image),
			containerd.WithNewSpec(oci.WithImageConfig(image), oci.WithProcessArgs("true"), withLabel))
		if err != nil {
			t.Fatal(err)
		}
		task, err := c.NewTask(ctx, cio.NullIO)
		options := fmt.Sprint(err)
		if err == nil {
			mounts, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil {
				t.Error(err)
			}
			options = string(mounts)
			if _, err := task.Delete(ctx, containerd.WithProcessKill); err != nil {
				t.Error(err)
			}
		} else if !strings.Contains(options, "fstype: overlay,") {
			t.Errorf("%s: the failed mount was not an overlay: %s", kind, options)
		}
		if !strings.Contains(strings.ReplaceAll(options, `\`, ""), fmt.Sprintf("context=%q", label)) {
			t.Errorf("%s: the label is not among the options of the mount: %s", kind, options)
		}
		if err := c.Delete(ctx, containerd.WithSnapshotCleanup); err != nil {
			t.Error(err)
		}
	}
}
