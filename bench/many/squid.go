package many

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"lighter/test/testkit/site"
)

// squidConfig configures a Squid that listens on ADDRESS, for use with Lighter. Important
// settings: objects as large as a unit or an index stay in memory, concurrent requests for an
// object share one fetch, and a fetch continues if its client cancels.
const squidConfig = `http_port ADDRESS
http_access allow all
cache deny manager
cache_mem 1024 MB
maximum_object_size_in_memory 64 MB
maximum_object_size 64 MB
memory_cache_shared off
collapsed_forwarding on
quick_abort_min -1 KB
max_filedescriptors 16384
workers 1
via off
pinger_enable off
access_log none
cache_log /dev/null
cache_store_log none
netdb_filename none
pid_filename none
coredump_dir none
hosts_file none
dns_nameservers 127.0.0.1
visible_hostname squid
shutdown_lifetime 0 seconds
`

// Counters are the counters of a Squid.
type Counters struct {
	Requests       int64   `json:"requests"`       // of clients
	Hits           int64   `json:"hits"`           // requests of clients that were hits
	Errors         int64   `json:"errors"`         // requests of clients that failed
	Bytes          int64   `json:"bytes"`          // sent to clients
	ServerRequests int64   `json:"serverRequests"` // to servers
	ServerErrors   int64   `json:"serverErrors"`   // requests to servers that failed
	ServerBytes    int64   `json:"serverBytes"`    // received from servers
	CPU            float64 `json:"cpu"`            // processor time, in seconds
}

// HitRatio returns the share of requests answered without a server.
func (c Counters) HitRatio() float64 {
	if c.Requests == 0 {
		return 0
	}
	return max(0, 1-float64(c.ServerRequests)/float64(c.Requests))
}

// squid is a running Squid.
type squid struct {
	address string
	kill    context.CancelFunc
	ended   chan struct{} // closed when err is set
	err     error
}

// startSquid starts a Squid with an empty cache, on the nodes' or the hub's side of the link. It
// does not wait until the Squid listens.
func (r *run) startSquid(ctx context.Context, near bool) (*squid, error) {
	s := &squid{address: "127.0.0.1:3128", ended: make(chan struct{})}
	if !near {
		s.address = site.SpareAddress
	}
	config := filepath.Join(r.Site.Dir, "squid.conf")
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(squidConfig, "ADDRESS", s.address)), 0o644); err != nil {
		return nil, err
	}
	argv := []string{"squid", "-N", "-f", config}
	ctx, s.kill = context.WithCancel(ctx)
	go func() {
		defer close(s.ended)
		if near {
			_, s.err = r.Site.Machine.Command(ctx, argv...)
		} else {
			s.err = exec.CommandContext(ctx, argv[0], argv[1:]...).Run()
		}
	}()
	return s, nil
}

func (s *squid) stop() {
	s.kill()
	<-s.ended
}

// failure returns an error if the Squid has ended by itself. For a nil Squid it returns nil.
func (s *squid) failure() error {
	if s == nil {
		return nil
	}
	select {
	case <-s.ended:
		return fmt.Errorf("run Squid (`test/setup squid` installs it): it has ended: %w", s.err)
	default:
		return nil
	}
}

// since returns the differences to earlier counters.
func (c Counters) since(before Counters) Counters {
	return Counters{Requests: c.Requests - before.Requests, Hits: c.Hits - before.Hits,
		Errors: c.Errors - before.Errors, Bytes: c.Bytes - before.Bytes,
		ServerRequests: c.ServerRequests - before.ServerRequests, ServerErrors: c.ServerErrors - before.ServerErrors,
		ServerBytes: c.ServerBytes - before.ServerBytes, CPU: c.CPU - before.CPU}
}

// awaitCounters waits for a Squid that was just started, and returns its counters.
func awaitCounters(ctx context.Context, address string) (Counters, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		c, err := readCounters(ctx, address)
		if err == nil || !pause(ctx, 50*time.Millisecond) {
			return c, err
		}
	}
}

// readCounters gets the counters from a Squid's manager. They include this request.
func readCounters(ctx context.Context, address string) (c Counters, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/squid-internal-mgr/counters", nil)
	if err != nil {
		return c, err
	}
	direct := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := direct.Do(req)
	if err != nil {
		return c, fmt.Errorf("get Squid's counters: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return c, fmt.Errorf("get Squid's counters: %s", res.Status)
	}
	return parseCounters(res.Body)
}

// parseCounters reads lines like "client_http.requests = 12".
func parseCounters(text io.Reader) (c Counters, err error) {
	values := map[string]float64{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), " = "); ok {
			if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
				values[strings.TrimSpace(name)] = n
			}
		}
	}
	for name, into := range map[string]*int64{"client_http.requests": &c.Requests, "client_http.hits": &c.Hits,
		"client_http.errors":     &c.Errors,
		"client_http.kbytes_out": &c.Bytes, "server.all.requests": &c.ServerRequests,
		"server.all.errors": &c.ServerErrors, "server.all.kbytes_in": &c.ServerBytes} {
		n, ok := values[name]
		if !ok {
			return c, fmt.Errorf("parse Squid's counters: %s is missing", name)
		}
		if strings.Contains(name, ".kbytes_") {
			n *= 1024
		}
		*into = int64(n)
	}
	c.CPU = values["cpu_time"]
	return c, lines.Err()
}
