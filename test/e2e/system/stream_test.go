//go:build e2e

package system

import (
	"testing"

	"lighter/test/testkit/site"
)

// An image that has three times the cache's size is read again and again: every byte
// is right, and the cache stays below its limit.
func TestWorkingSetLargerThanTheCache(t *testing.T) {
	s := start(t, site.Options{NodeArgs: []string{"--cache-size", "64MiB", "--disk-free-low", "0"}}, "+python")
	const sum = "find / -xdev -type f -size +3k -print0 | sort -z | xargs -0 sha256sum | sha256sum; find / -xdev -type f -print0 | xargs -0 cat | wc -c"
	sums := map[string]string{}
	for _, snapshotter := range []string{site.Overlayfs, site.Lighter} {
		pull(t, s, snapshotter, "python")
		for range 2 {
			if err := site.DropCaches(); err != nil {
				t.Fatal(err)
			}
			ran, err := s.Machine.Run(t.Context(), snapshotter, site.Reference("python"), "sh", "-c", sum)
			if err != nil {
				t.Fatal(err)
			}
			if before := sums[snapshotter]; before != "" && before != ran.Output {
				t.Errorf("%s: read again it is %q, before %q", snapshotter, ran.Output, before)
			}
			sums[snapshotter] = ran.Output
		}
	}
	t.Logf("read %s", sums[site.Lighter])
	if sums[site.Lighter] != sums[site.Overlayfs] {
		t.Errorf("lighter reads %q, overlayfs %q", sums[site.Lighter], sums[site.Overlayfs])
	}
	st := status(t, s).Cache
	if st.Used > st.Limit || st.Evicted < 2*st.Limit || st.Failed+st.Damaged+st.Unread > 0 {
		t.Errorf("the cache: %+v", st)
	}
	t.Logf("%+v", st)
}
