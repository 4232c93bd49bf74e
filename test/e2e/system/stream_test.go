//go:build e2e

package system

import (
	"strings"
	"testing"

	"lighter/test/testkit/site"
)

// An image of three times the cache's size is read repeatedly. Every byte is right, and the cache
// stays below its limit. The completion of the image stops before it would evict chunks.
func TestWorkingSetLargerThanTheCache(t *testing.T) {
	s := start(t, site.Options{NodeArgs: []string{"--cache-size", "64MiB", "--complete"}}, "+python")
	const sum = "find / -xdev -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"
	pull(t, s, site.Overlayfs, "python")
	want := run(t, s, site.Overlayfs, "python", "sh", "-c", sum)
	pull(t, s, site.Lighter, "python")
	run(t, s, site.Lighter, "python", "true")
	await(t, "a full cache", func() bool { return strings.Contains(status(t, s).Completion.Waits, "full") })
	if st := status(t, s); st.Cache.Evicted > 0 || st.Cache.Used < st.Cache.Limit/2 {
		t.Errorf("the cache after the completion: %+v", st.Cache)
	}
	for range 2 {
		if err := site.DropCaches(); err != nil {
			t.Fatal(err)
		}
		if got := run(t, s, site.Lighter, "python", "sh", "-c", sum); got != want {
			t.Errorf("lighter reads %q, overlayfs %q", got, want)
		}
	}
	st := status(t, s).Cache
	if st.Used > st.Limit || st.Evicted < 4*st.Limit || st.Failed+st.Damaged+st.Unread > 0 {
		t.Errorf("the cache: %+v", st)
	}
}
