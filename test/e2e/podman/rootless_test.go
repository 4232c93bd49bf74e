//go:build e2e

package podman

import (
	"testing"

	"lighter/test/testkit/unprivileged"
)

// beUser makes Podman run as a user without privileges.
func (m *machine) beUser() {
	m.t.Helper()
	m.as = unprivileged.New(m.t, m.dir)
	m.t.Cleanup(func() { _, _ = m.run("podman", "system", "migrate") }) // ends the process that keeps the namespaces
}

// For a user without privileges, root's files of an image belong to root of the user's containers,
// as after a pull.
func TestRootless(t *testing.T) {
	m := newMachine(t)
	m.beUser()
	for range 2 { // not mounted, and mounted
		out := m.podman("run", "--rm", app, "sh", "-c",
			"stat -c '%U %g %a' /etc/passwd /root; head -c 5 /etc/shadow; "+
				"echo x > new; chown 33:33 new both; stat -c %u new both")
		m.want(out, "root 0 644\nroot 0 700\nroot:33\n33\n")
	}
	m.podman("run", "--name", "box", app, "touch", "new")
	m.want(m.podman("diff", "box"), "A /etc/new")
	m.podman("commit", "box", "localhost/new:1")
	m.podman("rm", "box")
	m.podman("rmi", "localhost/new:1")
	m.as = nil // root has a mount of its own
	m.want(m.podman("run", "--rm", app, "stat", "-c", "%u", "/etc/passwd"), "0")
}

// Root's containers with a user namespace of their own do not start from the store. The doctor says
// so.
func TestUserNamespacesOfRoot(t *testing.T) {
	m := newMachine(t)
	if out, err := m.tryPodman("run", "--rm", "--uidmap", "0:200000:65536", app, "true"); err == nil {
		t.Errorf("a container of root with --uidmap starts, which the doctor denies: %s", out)
	}
	out, _ := m.run(lighter, "doctor", "--root", m.root()) // it finds other problems in this enclosure
	m.want(out, "root's podman run with --uidmap or --userns=auto cannot start them")
}
