//go:build kubernetes

package kubernetes

import (
	"strings"
	"testing"

	"lighter/test/testkit/pods"
	"lighter/test/testkit/site"
)

// A pod in a user namespace is lazy, and sees the owners that the image gives its files.
func TestPodInUserNamespace(t *testing.T) {
	text := strings.Replace(config(t), `capabilities = ["rebase"]`, `capabilities = ["rebase", "remap-ids"]`, 1)
	s := startSite(t, site.Options{Config: text, RemapIDs: true})
	before, err := s.Machine.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	pods.Pull(t, s, pods.Pause, "")
	pods.Pull(t, s, python, "")
	mapping := []object{{"hostId": 100000, "containerId": 0, "length": 65536}}
	p := pods.Run(t, s, "mapped", "",
		object{"usernsOptions": object{"mode": "POD", "uids": mapping, "gids": mapping}})
	c := p.Start(python, nil)
	want := "         0     100000      65536\n0:42\n"
	if got := p.Exec(c, "cat /proc/self/uid_map; stat -c %u:%g /etc/shadow; cd /; "+pods.CheckPackage); got != want {
		t.Errorf("the container prints %q, want %q", got, want)
	}
	after, err := s.Machine.Bytes()
	if err != nil || after-before > pods.Bytes {
		t.Errorf("the pod received %d bytes (%v), want at most %d", after-before, err, pods.Bytes)
	}
}
