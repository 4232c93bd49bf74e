//go:build kubernetes

package kubernetes

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"lighter/node/report"
	"lighter/test/testkit/pods"
	"lighter/test/testkit/site"
)

// rebooted cuts the machine's power while a pod runs, and starts its services again: systemd those
// that are enabled, and then the kubelet. The pods come back, and fetch nothing again.
func (f *fleet) rebooted(t *testing.T) {
	// Earlier tests have evicted chunks of this image, whose pages are still in memory. The first
	// start must read all that it needs through the cache.
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	s := spec("Always", "cd / && "+pods.CheckPackage+" && echo checked && sleep infinity")
	f.apply(t, pod("survivor", s))
	checked := func(restarts string) func() bool {
		return func() bool {
			if f.get(t, "pod/survivor", "{.status.containerStatuses[0].restartCount}") != restarts {
				return false
			}
			out, err := f.c.Kubectl(t.Context(), "", "logs", "survivor")
			return err == nil && strings.Contains(out, "checked")
		}
	}
	await(t, "the first start of the pod", checked("0"))
	// The installer's image was unpacked before the snapshotter was there. Its next pod, which
	// comes with any reboot, unpacks it again. This pod comes before.
	f.kubectl(t, "", "-n", "lighter", "delete", "pods", "--all")
	await(t, "the installer's next pod", func() bool {
		return f.kubectl(t, "", "-n", "lighter", "get", "pods", "-o",
			`jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`) == "True"
	})
	if err := f.s.Machine.PowerOff(f.c.Dir()); err != nil {
		t.Fatal(err)
	}
	f.received(t, 3<<20, func() {
		if err := errors.Join(f.c.StopKubelet(), f.manager.Boot(t.Context()), f.startServices(t, f.s)); err != nil {
			t.Fatal(err)
		}
		if err := f.c.StartKubelet(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		await(t, "the pod's return", checked("1"))
	})
	st := f.status(t)
	t.Logf("the node has fetched %d bytes since the reboot, for the images %+v", st.Fetched.Bytes, st.Images)
	if !slices.ContainsFunc(st.Images, func(i report.ImageStatus) bool {
		return i.Image == python && i.Lazy
	}) {
		t.Errorf("after the reboot, the images are %+v, want %s, lazy", st.Images, python)
	}
	f.awaitRollOut(t)
	f.kubectl(t, "", "delete", "pod/survivor")
}
