//go:build e2e

package converters

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/site"
)

// Debian's Podman writes zstd:chunked, and so does the library of newer ones, in another dialect.
func TestPodman(t *testing.T) {
	s, layout := start(t)
	// It has a cache of what registries have, also from Skopeo: it would push no layer that the
	// original has.
	const storage = "/var/lib/containers"
	if err := errors.Join(os.MkdirAll(storage, 0o755), unix.Mount("none", storage, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(storage, unix.MNT_DETACH) })
	id := strings.TrimSpace(do(t, "podman", "pull", "--quiet", "oci:"+layout+":latest"))
	ref := site.Reference("lazy/podman")
	do(t, "podman", "push", "--quiet", "--tls-verify=false", "--compression-format", "zstd:chunked", id, ref)
	startsLazily(t, s, ref, 8<<20, nil)
	ref = site.Reference("lazy/library")
	do(t, tool(t, "chunkedpush"), original, ref)
	startsLazily(t, s, ref, 8<<20, nil)
}
