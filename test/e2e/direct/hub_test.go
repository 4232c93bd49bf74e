//go:build e2e

package direct

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/sleep"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// A node that does not know the hub starts an image lazily by the index that the hub has attached
// to it, with the hub stopped, and with the same files as with overlayfs.
func TestAttachedByAHub(t *testing.T) {
	_, other := makeKey(t)
	host, _, _ := strings.Cut(site.Reference("any"), "/")
	hub := fmt.Sprintf("[[registry]]\nhost = %q\nprivate = true\nplain_http = true\nattach = [\"plain/**\"]\n", host)
	s := startWith(t, site.Options{Hubs: []string{}, HubConfig: hub}, "attached_keys = [\""+other+"\"]")
	ref := extended(t, s, "plain/mine", "mine")
	if err := s.Hub.Add(t.Context(), "plain/mine"); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(3 * time.Minute) // the hub looks once a minute
	for !strings.Contains(lighter(t, "attach", "--plain-http", "--list", ref), s.Hub.Key) {
		if !sleep.For(t.Context(), time.Second) || time.Now().After(deadline) {
			jobs, err := s.Hub.Lighter(t.Context(), "jobs")
			t.Fatalf("the hub attaches nothing: its jobs are %s, %v", jobs, err)
		}
	}
	if err := s.Hub.Stop(); err != nil {
		t.Fatal(err)
	}
	s.Machine.KillNode()
	file := filepath.Join(t.TempDir(), "node.toml")
	configure(t, file, "attached_keys = [\""+s.Hub.Key+"\"]")
	err := errors.Join(s.Machine.StartNode(t.Context(), "--config", file), s.Machine.Reconnect(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if moved := pull(t, s, ref); moved > images.Size(t, "base")/20 {
		t.Errorf("the pull received %d bytes, want the index only", moved)
	}
	wantLazy(t, s, true)
	if st := sitetest.Status(t, s); len(st.Images) == 1 && st.Images[0].Source.Source != "attached" {
		t.Errorf("the image's source is %+v, want the attached index", st.Images[0].Source)
	}
	compare(t, s, ref)
}
