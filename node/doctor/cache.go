package doctor

import (
	"context"
	"fmt"
	"time"

	"lighter/bytesize"
	"lighter/store/disk"
)

// cache checks the cache of a running node.
func (m *machine) cache(context.Context) []Finding {
	if m.status == nil {
		return nil
	}
	return judgeCache(m.status.Cache, m.status.Started)
}

// judgeCache judges the state of a cache. started is the time at which its counters began.
func judgeCache(c disk.Stats, started time.Time) []Finding {
	off := rule{c.Off() != "", Problem, "the cache is not used, so chunks are fetched again and again: " + c.Off(),
		"the node's log says why; df -h, df -i and dmesg"}
	if c.Absent != "" {
		return []Finding{off.finding()}
	}
	usage := fmt.Sprintf("the cache uses %s of %s; %s are pinned, %s were evicted",
		rounded(c.Used), rounded(c.Limit), rounded(c.Pinned), rounded(c.Evicted))
	return all(usage, []rule{
		off,
		{c.Room < c.Limit/2, Warning,
			fmt.Sprintf("the cache's disk has only %s free, so the cache may use %s of its limit of %s",
				rounded(c.Free), rounded(c.Room), rounded(c.Limit)),
			"remove other data from the disk, use a larger disk, or change disk_free_low and cache_size"},
		{c.Pinned > c.Room, Warning,
			fmt.Sprintf("%s are pinned, and the cache's disk has room for only %s: no room is left for other chunks",
				rounded(c.Pinned), rounded(c.Room)),
			"lighter cache unpin IMAGE (lighter cache lists them)"},
		{c.Evicted > c.Limit, Warning,
			fmt.Sprintf("since %s the cache has evicted %s, more than its limit of %s: "+
				"the images in use may not fit into it",
				started.Local().Format(time.DateTime), rounded(c.Evicted), rounded(c.Limit)),
			"--cache-size " + bytesize.Size(2*c.Limit).String() + ", if the disk has the room"},
		{c.Damaged+c.Unread > 0, Warning,
			fmt.Sprintf("the cache's disk returned %d chunks damaged and failed to read %d; they were fetched again",
				c.Damaged, c.Unread),
			"smartctl -a, dmesg | grep -i 'i/o error'; perhaps another disk"},
		{c.Hung > 0, Warning,
			fmt.Sprintf("the cache's disk did not answer %d reads and writes in time; "+
				"chunks that could not be read were fetched again", c.Hung),
			`dmesg | grep -i 'blocked for\|timeout'; iostat -x; perhaps another disk`},
		{c.Failed > 0, Warning, fmt.Sprintf("the cache's disk failed to write %d chunks", c.Failed),
			"the node's log says why; df -h, df -i and dmesg"},
	})
}
