package many

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lighter/bench"
)

// Positions of the Squid proxy.
const (
	Direct    = "direct" // no Squid: the nodes reach the hub over the link
	NearNodes = "squid"  // on the nodes' side of the link
	NearHub   = "behind" // on the hub's side of the link
)

// Positions lists all positions.
var Positions = []string{Direct, NearNodes, NearHub}

// Cell holds the figures of one measurement: a number of nodes start a workload, with Squid in one
// position.
type Cell struct {
	Workload string        `json:"workload"` // IMAGE/WORKLOAD
	Position string        `json:"position"` // of Squid
	Nodes    int           `json:"nodes"`
	Spread   time.Duration `json:"spread"` // time over which the starts were spread

	Pull  Quantiles `json:"pull"`  // seconds of a pull
	Done  Quantiles `json:"done"`  // seconds from the pull to the last read
	Reads Quantiles `json:"reads"` // seconds of a read
	Count int       `json:"count"` // of the reads

	Bytes        int64            `json:"bytes"`        // to all nodes
	Requests     int64            `json:"requests"`     // of all nodes
	LinkBytes    int64            `json:"linkBytes"`    // over the link
	HubBytes     int64            `json:"hubBytes"`     // from the hub
	HubRequests  map[string]int64 `json:"hubRequests"`  // by kind of object
	HubErrors    int64            `json:"hubErrors"`    // responses with a status of 400 or more
	Squid        Counters         `json:"squid"`        // zero without Squid
	Retries      int64            `json:"retries"`      // of requests for units
	Failed       int64            `json:"failed"`       // failed requests of all nodes
	Refused      map[string]int   `json:"refused"`      // nodes that would have unpacked the image, by reason
	FailedStarts int              `json:"failedStarts"` // nodes whose start failed
	Error        string           `json:"error,omitempty"`

	Wall     float64 `json:"wall"`     // seconds from the first start to the end of the last fetch
	NodesCPU float64 `json:"nodesCPU"` // seconds of processor time, as HubCPU and DelayCPU
	HubCPU   float64 `json:"hubCPU"`
	DelayCPU float64 `json:"delayCPU"` // of the proxy that delays the link
	Busy     float64 `json:"busy"`     // share of the host's processor time used by all processes, 0 to 1
	Memory   int64   `json:"memory"`   // of the simulator, bytes
	Starts   []Start `json:"starts"`
}

// cell measures one cell.
func (r *run) cell(
	ctx context.Context, w *workload, position string, nodes int, spread time.Duration,
) (c Cell, err error) {
	c = Cell{Workload: w.name, Position: position, Nodes: nodes, Spread: spread}
	dir := filepath.Join(r.Site.Dir, "nodes")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return c, err
	}
	// The nodes' files are in memory, because all nodes would share one disk.
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size=90%"); err != nil {
		return c, fmt.Errorf("mount a tmpfs for the nodes: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir)) }()
	plan := Plan{Hub: r.Site.Hub.URL, Key: r.Site.Hub.Key, Chains: w.chains, Tree: w.tree, Trace: w.trace, Nodes: nodes,
		Spread: spread,
		Dir:    dir, Cache: max(256<<20, 4*w.touched), Stream: r.options.Stream}
	argv := []string{"env"}
	var proxy *squid
	if position != Direct {
		if proxy, err = r.startSquid(ctx, position == NearNodes); err != nil {
			return c, err
		}
		defer proxy.stop()
		plan.Counter = proxy.address
		argv = append(argv, "http_proxy=http://"+proxy.address)
	}
	file := filepath.Join(dir, "plan.json")
	if err := plan.write(file); err != nil {
		return c, err
	}
	before, err := r.look(ctx)
	if err != nil {
		return c, err
	}
	program, err := os.Executable()
	if err != nil {
		return c, err
	}
	out, err := r.Site.Machine.Command(ctx, append(argv, program, "nodes", file)...)
	if err != nil {
		return c, errors.Join(err, proxy.failure())
	}
	after, err := r.look(ctx)
	if err != nil {
		return c, err
	}
	var o Outcome
	if err := json.Unmarshal([]byte(out), &o); err != nil {
		return c, fmt.Errorf("decode the nodes' outcome: %w", err)
	}
	c.sum(o, before, after)
	return c, nil
}

// sum computes the cell's figures from the nodes' outcome and from the views before and after.
func (c *Cell) sum(o Outcome, before, after view) {
	var pull, done []float64
	c.Refused = map[string]int{}
	for _, s := range o.Starts {
		if s.Error != "" {
			c.FailedStarts++
			c.Error = s.Error
		} else {
			pull, done = append(pull, s.Pull), append(done, s.Done)
		}
		c.Bytes += s.Bytes
		c.Requests += s.Requests
		c.Retries += s.Retries
		c.Failed += s.Failed
		if s.Refused > 0 {
			c.Refused[s.Why]++
		}
	}
	c.Pull, c.Done, c.Reads, c.Count = quantiles(pull), quantiles(done), quantiles(o.Reads), len(o.Reads)
	c.Starts, c.Squid, c.Wall, c.Memory = o.Starts, o.Squid, o.Wall, o.Memory
	c.NodesCPU, c.HubCPU, c.DelayCPU = o.User+o.System, after.hubCPU-before.hubCPU, after.own-before.own
	c.LinkBytes = after.link - before.link
	if c.HubBytes = c.LinkBytes; c.Position == NearHub {
		c.HubBytes = c.Squid.ServerBytes
	}
	c.HubRequests = map[string]int64{}
	for endpoint, n := range after.requests {
		if n -= before.requests[endpoint]; n > 0 {
			c.HubRequests[endpoint] = n
		}
	}
	c.HubErrors = after.errors - before.errors
	if all := after.all - before.all; all > 0 {
		c.Busy = 1 - (after.idle-before.idle)/all
	}
}

// view holds counters of the hub, this process, the link and the host.
type view struct {
	link      int64            // bytes to the machine
	requests  map[string]int64 // to the hub, by endpoint
	errors    int64            // the hub's responses with a status of 400 or more
	hubCPU    float64          // processor time of the hub, in seconds
	own       float64          // processor time of this process, which delays the link, in seconds
	all, idle float64          // time of the processors, in ticks
}

func (r *run) look(ctx context.Context) (v view, err error) {
	if v.link, err = r.Site.Machine.Bytes(); err != nil {
		return v, err
	}
	u, err := usage()
	if err != nil {
		return v, err
	}
	v.own = u.user + u.system
	if v.all, v.idle, err = processors(); err != nil {
		return v, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.Site.Hub.URL+"/metrics", nil)
	if err != nil {
		return v, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return v, fmt.Errorf("get the hub's metrics: %w", err)
	}
	defer res.Body.Close()
	return v, v.readHub(res.Body)
}

// readHub reads the hub's metrics.
func (v *view) readHub(text io.Reader) error {
	v.requests = map[string]int64{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		if name == "process_cpu_seconds_total" {
			v.hubCPU = n
		}
		labels, ok := strings.CutPrefix(name, "lighter_hub_requests_total{")
		if !ok {
			continue
		}
		_, code, _ := strings.Cut(labels, `code="`)
		_, endpoint, _ := strings.Cut(labels, `endpoint="`)
		endpoint, _, _ = strings.Cut(endpoint, `"`)
		if endpoint != "other" { // requests for the metrics themselves
			v.requests[endpoint] += int64(n)
		}
		if code != "" && code[0] >= '4' {
			v.errors += int64(n)
		}
	}
	return lines.Err()
}

// processors returns the total and the idle time of the host's processors, in ticks.
func processors() (all, idle float64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(line)[1:9] { // without guest time, which user time includes
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %w", err)
		}
		all += n
		if i == 3 || i == 4 {
			idle += n
		}
	}
	return all, idle, nil
}

// say prints the cell's figures.
func (c *Cell) say() {
	bench.Say("%-12s %-7s %4d nodes  start p50 %s p99 %s  read p50 %s p99 %s  to nodes %s, at hub %s in %d requests "+
		" hits %2.0f %%  wall %s  CPU nodes %s Squid %s hub %s link %s, busy %.0f %%  refused %d, failed %d/%d%s",
		c.Workload, c.Position, c.Nodes, bench.Seconds(c.Done.P50), bench.Seconds(c.Done.P99), short(c.Reads.P50),
		short(c.Reads.P99),
		bench.Size(c.Bytes), bench.Size(c.HubBytes), c.hubRequests(), 100*c.Squid.HitRatio(), bench.Seconds(c.Wall),
		bench.Seconds(c.NodesCPU), bench.Seconds(c.Squid.CPU), bench.Seconds(c.HubCPU), bench.Seconds(c.DelayCPU),
		100*c.Busy, c.refused(), c.FailedStarts, c.Failed, c.Error)
}

func (c *Cell) hubRequests() (n int64) { return sum(c.HubRequests) }

func (c *Cell) refused() int { return sum(c.Refused) }

// sum returns the sum of all values.
func sum[N int | int64](of map[string]N) (n N) {
	for _, one := range of {
		n += one
	}
	return n
}

// cores returns the number of processors.
var cores = float64(runtime.NumCPU())
