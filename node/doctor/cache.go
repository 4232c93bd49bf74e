package doctor

import (
	"fmt"
	"time"

	"lighter/node"
	"lighter/store/disk"
)

// judgeCache judges the cache of a running node. started is when its counters began.
func (d *doctor) judgeCache(c disk.Stats, started time.Time) {
	const area = "cache"
	size := func(n int64) string { return node.Size(n).String() }
	level := OK
	add := func(how Level, what, mend string) {
		level = how
		d.add(area, how, what, mend)
	}
	if off := c.Off(); off != "" {
		add(Problem, "reads are fetched again and again: "+off, "the node's log says why; df -h, df -i and dmesg")
	}
	if c.Absent != "" {
		return
	}
	if c.Room < c.Limit/2 {
		add(Warning, fmt.Sprintf("of its disk %s are free, which leaves it %s of %s", size(c.Free), size(c.Room),
			size(c.Limit)),
			"less other data on the disk, a larger one, or other values of disk_free_low and cache_size")
	}
	if c.Pinned > c.Room {
		add(Warning, fmt.Sprintf("%s are pinned, and its disk leaves it %s: no room is left for other chunks",
			size(c.Pinned), size(c.Room)),
			"lighter cache unpin IMAGE (lighter cache lists them)")
	}
	if c.Evicted > c.Limit {
		add(Warning, fmt.Sprintf("since %s it has evicted %s, more than the %s that it may take: images in use may not fit",
			started.Local().Format(time.DateTime), size(c.Evicted), size(c.Limit)),
			"--cache-size "+size(2*c.Limit)+", if the disk has the room")
	}
	if c.Damaged+c.Unread > 0 {
		add(Warning, fmt.Sprintf("its disk returned %d chunks damaged and failed to read %d; they were fetched again",
			c.Damaged, c.Unread),
			"smartctl -a, dmesg | grep -i 'i/o error'; perhaps another disk")
	}
	if c.Hung > 0 {
		add(Warning, fmt.Sprintf("its disk did not answer %d reads and writes in time; reads were fetched", c.Hung),
			"dmesg | grep -i 'blocked for\\|timeout'; iostat -x; perhaps another disk")
	}
	if c.Failed > 0 {
		add(Warning, fmt.Sprintf("its disk failed to write %d chunks", c.Failed),
			"the node's log says why; df -h, df -i and dmesg")
	}
	if level == OK {
		add(OK, fmt.Sprintf("it takes %s of %s; %s are pinned, %s were evicted",
			size(c.Used), size(c.Limit), size(c.Pinned), size(c.Evicted)), "")
	}
}
