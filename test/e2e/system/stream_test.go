//go:build e2e

package system

import (
	"strings"
	"testing"

	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// A container reads an image that is larger than the cache, twice. Every byte is right, and the
// cache stays below its limit. Before that, the completion of the image stops when the cache is
// full, and evicts nothing.
func TestWorkingSetLargerThanTheCache(t *testing.T) {
	s := start(t, site.Options{NodeArgs: []string{"--cache-size", "64MiB", "--complete"}}, "+python")
	const sum = "find / -xdev -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"
	pull(t, s, site.Overlayfs, "python")
	want := run(t, s, site.Overlayfs, "python", "sh", "-c", sum)
	pull(t, s, site.Lighter, "python")
	run(t, s, site.Lighter, "python", "true")
	await(t, "a full cache", func() bool { return strings.Contains(sitetest.Status(t, s).Completion.Waits, "full") })
	if st := sitetest.Status(t, s); st.Cache.Evicted > 0 || st.Cache.Used < st.Cache.Limit/2 {
		t.Errorf("the cache after the completion: %+v, want nothing evicted, and half of the limit used", st.Cache)
	}
	for range 2 {
		if err := site.DropCaches(); err != nil {
			t.Fatal(err)
		}
		if got := run(t, s, site.Lighter, "python", "sh", "-c", sum); got != want {
			t.Errorf("digest of the files: got %q, want %q, as on overlayfs", got, want)
		}
	}
	st := sitetest.Status(t, s).Cache
	if st.Used > st.Limit || st.Evicted < 4*st.Limit || st.Failed+st.Damaged+st.Unread > 0 {
		t.Errorf("the cache: %+v, want the limit kept, at least four times the limit evicted, and no errors", st)
	}
}
